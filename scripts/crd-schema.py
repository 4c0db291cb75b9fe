#!/usr/bin/env python3
"""Converts a CustomResourceDefinition to the JSON Schema of its custom resource, strict and without descriptions.

    scripts/crd-schema.py KIND < crds.yaml > tests/reference/crds/kind.json

The schemas in tests/reference/crds were made this way; the README.md there names the sources. A pod's template is left open:
the tests compare it with Kubernetes' own types. Needs PyYAML.
"""

import json
import sys

import yaml

POD_TEMPLATE = {"type": "object"}


def schema(of, name=""):
    """Returns a structural OpenAPI schema as a JSON Schema that rejects unknown fields."""
    if name == "template" and "spec" in of.get("properties", {}) and "metadata" in of["properties"]:
        return POD_TEMPLATE
    out = {key: value for key, value in of.items() if not key.startswith("x-") and key not in ("description", "default")}
    if of.get("x-kubernetes-int-or-string"):
        out.pop("anyOf", None)
        return out | {"type": ["integer", "string"]}
    if "items" in of:
        out["items"] = schema(of["items"])
    if isinstance(of.get("additionalProperties"), dict):
        out["additionalProperties"] = schema(of["additionalProperties"])
    if "properties" in of:
        out["properties"] = {key: schema(value, key) for key, value in of["properties"].items()}
        if not of.get("x-kubernetes-preserve-unknown-fields"):
            out["additionalProperties"] = False
    return out


def main():
    kind = sys.argv[1]
    crds = [crd for crd in yaml.safe_load_all(sys.stdin) if crd and crd["spec"]["names"]["kind"] == kind]
    version = next(version for version in crds[0]["spec"]["versions"] if version["storage"])
    out = schema(version["schema"]["openAPIV3Schema"])
    api = f"{crds[0]['spec']['group']}/{version['name']}"
    out["properties"] |= {"apiVersion": {"const": api}, "kind": {"const": kind}, "metadata": {"type": "object"}}
    out = {"$schema": "http://json-schema.org/draft-07/schema#", "title": kind} | out
    json.dump(out, sys.stdout, indent=1, sort_keys=True)
    print()


if __name__ == "__main__":
    main()
