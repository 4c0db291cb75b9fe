#!/usr/bin/env python3
"""Processes a chart in charts/ with Helm's own code (helm-python-sdk), without asking a cluster.

    target/test-venv/bin/python scripts/helm.py lint CHART [VALUES.yaml]
    target/test-venv/bin/python scripts/helm.py template CHART [VALUES.yaml]

`lint` treats warnings as errors. `template` prints the objects of a release "rolldrop" in the namespace
"default", as JSON: {"objects": TEXT OF YAML, "notes": TEXT}.
"""

import json
import pathlib
import sys

from helm_python import Chart, HelmError
from helm_python.chart import lint, values_from_yaml

CHARTS = pathlib.Path(__file__).resolve().parent.parent / "charts"


def main() -> int:
    verb, name, *files = sys.argv[1:]
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
