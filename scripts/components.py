#!/usr/bin/env python3
"""Lists what the program consists of, from Cargo.lock: scripts/components.py notices|sbom TARGET

Both print to standard output: the licence texts of all packages that are linked into the program for this
target (x86_64-unknown-linux-musl, ...), or a list of them in CycloneDX 1.5. Needs only cargo.
"""

import json
import re
import subprocess
import sys
from pathlib import Path

TEXTS = re.compile(r"(?i)^(licen[cs]e|copying|notice|copyright|unlicense)")


def linked(target):
    """Returns our package, and the third-party packages linked into the program, in order."""
    command = ["cargo", "metadata", "--locked", "--format-version", "1", "--filter-platform", target]
    metadata = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    packages = {package["id"]: package for package in metadata["packages"]}
    nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}
    root = metadata["resolve"]["root"]
    found, waiting = set(), [root]
    while waiting:
        node = waiting.pop()
        if node not in found:
            found.add(node)
            for dependency in nodes[node]["deps"]:
                if any(kind["kind"] is None for kind in dependency["dep_kinds"]):
                    waiting.append(dependency["pkg"])
    # Our own crates have no separate licence or origin.
    found -= set(metadata["workspace_members"])
    others = sorted((packages[node] for node in found), key=lambda p: (p["name"], p["version"]))
    return packages[root], others


def texts(package):
    """Returns the texts of a package's licences and notices, by file name."""
    folder = Path(package["manifest_path"]).parent
    paths = [path for path in folder.iterdir() if TEXTS.match(path.name)]
    if package["license_file"]:
        paths.append(folder / package["license_file"])
    files = []
    for path in sorted(set(paths)):
        files += sorted(path.rglob("*")) if path.is_dir() else [path]
    return [(file.relative_to(folder), file.read_text(errors="replace").strip()) for file in files if file.is_file()]


def notices(root, others):
    """Prints all texts; a text that several packages share is printed once."""
    said = {}
    for package in others:
        for name, text in texts(package):
            said.setdefault(text, []).append(f"{package['name']} {package['version']} ({name})")
    print(f"{root['name']} {root['version']} is licensed under {root['license']}. It contains these packages:\n")
    for package in others:
        by = ", ".join(package["authors"])
        print(f"{package['name']} {package['version']}: {package['license']}{f', {by}' if by else ''}")
        if not texts(package):
            print(f"    It contains no licence text: {package['repository'] or 'crates.io'}")
    for text, names in sorted(said.items(), key=lambda entry: entry[1]):
        print("\n" + "=" * 80)
        print("\n".join(names) + "\n\n" + text)


def component(package, kind):
    """Returns a package in CycloneDX form."""
    return {
        "type": kind,
        "bom-ref": f"pkg:cargo/{package['name']}@{package['version']}",
        "name": package["name"],
        "version": package["version"],
        "purl": f"pkg:cargo/{package['name']}@{package['version']}",
        # The old form of "or" is not valid in SPDX.
        "licenses": [{"expression": re.sub(r"\s*/\s*", " OR ", package["license"])}],
    }


def sbom(root, others):
    """Prints CycloneDX 1.5, without a time or a random number: the same source produces the same list."""
    bom = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": component(root, "application")},
        "components": [component(package, "library") for package in others],
    }
    print(json.dumps(bom, indent=2))


def main():
    makers = {"notices": notices, "sbom": sbom}
    if len(sys.argv) != 3 or sys.argv[1] not in makers:
        sys.exit(__doc__.strip())
    makers[sys.argv[1]](*linked(sys.argv[2]))


if __name__ == "__main__":
    main()
