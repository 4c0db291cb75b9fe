#!/usr/bin/env python3
"""Writes crates/lab/src/schema.txt: the fields of the objects that the embedded cluster serves.

    scripts/api-schema.py KUBERNETES_CHECKOUT > crates/lab/src/schema.txt

Reads the Go types of a Kubernetes source tree, with the markers beside them that define how lists
and maps are merged. The format is explained in crates/lab/src/schema.rs.
"""

import re
import sys
from pathlib import Path

PACKAGES = {
    "metav1": "apimachinery/pkg/apis/meta/v1",
    "v1": "api/core/v1",
    "apps": "api/apps/v1",
    "authentication": "api/authentication/v1",
    "authorization": "api/authorization/v1",
    "autoscaling": "api/autoscaling/v1",
    "batch": "api/batch/v1",
    "coordination": "api/coordination/v1",
    "discovery": "api/discovery/v1",
    "networking": "api/networking/v1",
    "policy": "api/policy/v1",
    "rbac": "api/rbac/v1",
}
ROOTS = [
    (
        "v1",
        [
            "Namespace", "Node", "Pod", "Service", "Endpoints", "Event", "ConfigMap", "Secret",
            "PersistentVolumeClaim", "ServiceAccount",
        ],
    ),
    ("apps", ["Deployment", "ReplicaSet", "StatefulSet", "DaemonSet"]),
    ("discovery", ["EndpointSlice"]),
    ("networking", ["Ingress", "IngressClass"]),
    ("policy", ["PodDisruptionBudget", "Eviction"]),
    ("batch", ["Job"]),
    ("coordination", ["Lease"]),
    ("rbac", ["Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding"]),
    ("authentication", ["SelfSubjectReview"]),
    ("authorization", ["SelfSubjectAccessReview"]),
    ("autoscaling", ["Scale"]),
    ("metav1", ["DeleteOptions"]),
]
SCALARS = {
    "string": "string",
    "bool": "bool",
    "int": "int32",
    "int32": "int32",
    "int64": "int64",
    "uint32": "int64",
    "metav1.Time": "time",
    "metav1.MicroTime": "microTime",
    "resource.Quantity": "quantity",
    "intstr.IntOrString": "intOrString",
    "runtime.RawExtension": "any",
    "metav1.FieldsV1": "any",
    "types.UID": "string",
    "types.NodeName": "string",
}


class Package:
    def __init__(self, name, text):
        self.structs, self.aliases = {}, {}
        lines = iter(text.splitlines())
        for line in lines:
            if found := re.match(r"type (\w+) struct \{", line):
                body = []
                if not line.rstrip().endswith("}"):
                    for line in lines:
                        if line == "}":
                            break
                        body.append(line)
                self.structs[found[1]] = body
            elif found := re.match(r"type (\w+) (.+)", line):
                self.aliases[found[1]] = found[2].split("//")[0].strip()
        self.name = name


def field_lines(body):
    """Yields the line of each field of a struct."""
    for line in body:
        text = line.strip()
        if text and not text.startswith("//"):
            yield text


def main(checkout):
    staging = Path(checkout) / "staging/src/k8s.io"
    packages = {name: Package(name, (staging / path / "types.go").read_text()) for name, path in PACKAGES.items()}
    written, order, queue = {}, [], [(package, name) for package, names in ROOTS for name in names]

    def qualify(package, go_type):
        """Returns (package, name) of a Go type as seen from `package`."""
        prefix, _, name = go_type.rpartition(".")
        return ({"corev1": "v1"}.get(prefix, prefix) or package, name)

    def name_of(package, name):
        clash = sum(name in other.structs for other in packages.values()) > 1
        return f"{package}.{name}" if clash and package != "v1" else name

    def type_of(package, go_type):
        go_type = go_type.lstrip("*")
        if go_type == "[]byte":
            return "bytes"
        if go_type.startswith("[]"):
            return f"[{type_of(package, go_type[2:])}]"
        if found := re.match(r"map\[[\w.]+\](.+)", go_type):
            return f"{{{type_of(package, found[1])}}}"
        home, name = qualify(package, go_type)
        scalar = SCALARS.get(go_type) or SCALARS.get(f"{home}.{name}")
        if scalar:
            return scalar
        if home in packages and name in packages[home].aliases:
            return type_of(home, packages[home].aliases[name])
        if (home, name) not in written and (home, name) not in queue:
            queue.append((home, name))
        return name_of(home, name)

    def number_of(tag):
        """Returns a field's protobuf number, which api/protobuf.rs uses; empty for the type's own fields."""
        found = re.search(r'protobuf:"\w+,(\d+)', tag)
        return found[1] if found else ""

    def fields_of(package, name, holder=""):
        """Yields the lines of a structure; `holder` is the number of the message that contains an inlined one."""
        for line in field_lines(packages[package].structs[name]):
            found = re.match(r"(?:(\w+)\s+)?(\*?[\[\]\w.*]+)\s+`([^`]*)`", line)
            if not found:
                continue
            go_type, tag = found[2], found[3]
            json_name, *options = re.search(r'json:"([^"]*)"', tag)[1].split(",")
            if not json_name and (not found[1] or "inline" in options):
                number = number_of(tag)
                yield from fields_of(*qualify(package, go_type.lstrip("*")), f"{holder}{number}." if number else holder)
                continue
            kind = type_of(package, go_type)
            # In protobuf, an object does not contain its own type.
            number = "" if name == "TypeMeta" else number_of(tag)
            flags = [f"#{holder}{number}"] if number else []
            is_value = not go_type.startswith("*")
            home, own = qualify(package, go_type)
            is_struct = is_value and home in packages and own in packages[home].structs
            if kind in ("time", "microTime") and is_value and "omitzero" not in options:
                flags.append("null")
            elif "omitempty" in options and is_value and not is_struct:
                flags.append("?")
            strategy = re.search(r'patchStrategy:"([^"]*)"', tag)
            strategies = strategy[1].split(",") if strategy else []
            if "merge" in strategies:
                key = re.search(r'patchMergeKey:"([^"]*)"', tag)
                flags.append("merge=" + (key[1] if key else ""))
            if "retainKeys" in strategies:
                flags.append("retainKeys")
            yield " ".join([f" {json_name}", kind, *flags])

    while queue:
        package, name = queue.pop(0)
        if (package, name) in written:
            continue
        written[package, name] = True
        fields = sorted(fields_of(package, name))
        order.append("\n".join([name_of(package, name), *fields]))
    print("\n".join(order))


main(sys.argv[1])
