#!/usr/bin/env python3
"""Processes a chart in charts/ with Helm's own code (helm-python-sdk).

    target/test-venv/bin/python scripts/helm.py lint CHART [VALUES.yaml]
    target/test-venv/bin/python scripts/helm.py template CHART [VALUES.yaml]
    target/test-venv/bin/python scripts/helm.py install NAME FOLDER -n NAMESPACE [--create-namespace] [--set KEY=VALUE]...

`lint` treats warnings as errors. `template` prints the objects of a release "rolldrop" in the namespace
"default", as JSON: {"objects": TEXT OF YAML, "notes": TEXT}. Neither asks a cluster. `install` stands in for
`helm install`, for which the registries have no program; it takes the cluster of KUBECONFIG.
"""

import argparse
import json
import os
import pathlib
import sys

from helm_python import Chart, Config, HelmError, parse_set_string
from helm_python.chart import lint, values_from_yaml

CHARTS = pathlib.Path(__file__).resolve().parent.parent / "charts"


def install(words: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="helm install")
    parser.add_argument("name")
    parser.add_argument("folder")
    parser.add_argument("-n", "--namespace", required=True)
    parser.add_argument("--create-namespace", action="store_true")
    parser.add_argument("--set", action="append", default=[])
    args = parser.parse_args(words)
    values = parse_set_string(",".join(args.set))
    cluster = Config(kubeconfig_path=os.environ["KUBECONFIG"], namespace=args.namespace)
    with Chart.load(args.folder) as chart:
        release = cluster.install(chart, args.name, values, create_namespace=args.create_namespace)
    print(release["notes"])
    return 0


def main() -> int:
    verb, name, *files = sys.argv[1:]
    if verb == "install":
        return install(sys.argv[2:])
    chart_folder = CHARTS / name
    values = values_from_yaml(pathlib.Path(files[0]).read_text()) if files else {}
    try:
        if verb == "lint":
            report = lint(chart_folder, values, strict=True, namespace="default")
            print(json.dumps(report))
            return 1 if report["errors"] else 0
        with Chart.load(chart_folder) as chart:
            rendered = chart.render(values, name="rolldrop", namespace="default")
    except HelmError as error:
        print(error, file=sys.stderr)
        return 1
    notes = "".join(text for path, text in rendered.items() if path.endswith("NOTES.txt"))
    # In Helm's order of installation: objects that the Job needs come before it.
    paths = sorted(rendered, key=lambda path: (path.endswith("job.yaml"), path))
    objects = [rendered[path] for path in paths if path.endswith(".yaml") and rendered[path].strip()]
    print(json.dumps({"objects": "---\n".join(text.strip() + "\n" for text in objects), "notes": notes}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
