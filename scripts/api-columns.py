#!/usr/bin/env python3
"""Writes crates/lab/src/http_api/table/columns.txt: the columns of `kubectl get`, with their descriptions.

    scripts/api-columns.py KUBERNETES_CHECKOUT > crates/lab/src/http_api/table/columns.txt

Reads the printers of a Kubernetes source tree and the documentation of the types they use.
The format is explained in crates/lab/src/http_api/table/table_columns.rs.
"""

import re
import sys
from pathlib import Path

# The kinds, by the name of their printer columns.
KINDS = {
    "namespace": "Namespace",
    "node": "Node",
    "pod": "Pod",
    "service": "Service",
    "endpoint": "Endpoints",
    "event": "Event",
    "serviceAccount": "*",
    "deployment": "Deployment",
    "replicaSet": "ReplicaSet",
    "statefulSet": "StatefulSet",
    "daemonSet": "DaemonSet",
    "endpointSlice": "EndpointSlice",
    "podDisruptionBudget": "PodDisruptionBudget",
    "job": "Job",
}
PACKAGES = {
    "apiv1": "api/core/v1",
    "appsv1": "api/apps/v1",
    "autoscalingv1": "api/autoscaling/v1",
    "batchv1": "api/batch/v1",
    "coordinationv1": "api/coordination/v1",
    "discoveryv1": "api/discovery/v1",
    "metav1": "apimachinery/pkg/apis/meta/v1",
    "networkingv1": "api/networking/v1",
    "policyv1": "api/policy/v1",
    "rbacv1beta1": "api/rbac/v1beta1",
}


def documentation(root, package, type_name, field):
    path = root / "staging/src/k8s.io" / PACKAGES[package] / "types_swagger_doc_generated.go"
    # One map of strings for each type.
    body = re.search(rf"var map_{type_name} = map\[string\]string\{{\n(.*?)\n\}}", path.read_text(), re.S)[1]
    return re.search(rf'^\t"{field}":\s+"(.*)",$', body, re.M)[1] if f'"{field}"' in body else ""


def description(root, source):
    if found := re.fullmatch(r'(\w+)\.(\w+)\{\}\.SwaggerDoc\(\)\["(\w*)"\]', source):
        return documentation(root, *found.groups())
    return re.fullmatch(r'"(.*)"', source)[1]


def main():
    root = Path(sys.argv[1])
    printers = (root / "pkg/printers/internalversion/printers.go").read_text()
    printers = printers.replace("Event{}.InvolvedObject.", "ObjectReference{}.")
    for name, kind in KINDS.items():
        body = re.search(rf"\t{name}ColumnDefinitions? := \S+\{{\n(.*?)\n\t\}}", printers, re.S)[1]
        print(kind)
        for column in re.findall(r"\{(Name: .*)\},$", body, re.M):
            part = lambda field, default: (re.search(rf'{field}: "?([^",]*)', column) or ["", default])[1]
            source = re.search(r'Description: (".*"|\S+\(\)\["\w*"\])', column)[1]
            shown = [part("Name", ""), part("Type", ""), part("Format", ""), part("Priority", "0")]
            print("  " + "|".join([*shown, description(root, source).replace('\\"', '"')]))


main()
