#!/usr/bin/env python3
"""Tries `rolldrop inject` on manifests of other projects: scripts/corpus.py ROLLDROP CHECKOUTS LIST

CHECKOUTS has a folder OWNER/NAME for each repository. LIST has a line for each file: repository, path, and the result of
the first attempt ("edited" or "refused: why"), separated by tabs. Missing files are counted. Needs PyYAML, which parses as
kubectl does.

A file that was edited must still be edited, a second injection must change nothing, and `--uninject` must restore it byte
for byte. If all its workloads turn out to carry no HTTP, it is now refused, which is right. A file of several workloads
that was refused is tried unchanged, and then with `--workload` for each of them. No message may contain the words of a
library, and each refusal must begin with the file's name. Exits with 1 if anything is wrong.
"""

import re
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import yaml

KINDS = {"Pod", "Deployment", "StatefulSet", "DaemonSet", "ReplicaSet", "ReplicationController", "Rollout"}
OF_LIBRARIES = re.compile(
    r"panicked|DuplicateKeyPolicy|did not find expected|Parse error|Suggestion:|Context:|at line \d+,? column|not YAML"
)
NO_HTTP = "which the HTTP proxy would break"
# docs/inject.md: `--uninject` does not restore these.
EMPTY = re.compile(rb"^[ -]*(annotations|initContainers):[ \t]*(null|~)?[ \t\r]*$", re.MULTILINE)
READER = getattr(yaml, "CBaseLoader", yaml.BaseLoader)


def workloads(text):
    """Returns the workloads of a text, as KIND/NAME; none if it is not YAML."""
    try:
        documents = list(yaml.load_all(text, READER))
    except yaml.YAMLError:
        return []
    objects = []
    for document in documents:
        is_list = isinstance(document, dict) and str(document.get("kind", "")).endswith("List")
        objects += (document.get("items") or []) if is_list else [document]
    found = []
    for item in objects:
        if isinstance(item, dict) and item.get("kind") in KINDS and isinstance(item.get("metadata"), dict):
            found.append(f"{item['kind'].lower()}/{item['metadata'].get('name', '')}")
    return found


class File:
    """A file of the list, and its result."""

    def __init__(self, rolldrop, path, before):
        self.rolldrop, self.path, self.before = rolldrop, path, before
        self.wrong = []
        self.outcome = self.tried()

    def inject(self, *arguments, text=None):
        source = ["-f", "-"] if text is not None else ["-f", str(self.path)]
        command = [self.rolldrop, "inject", *source, *arguments]
        done = subprocess.run(command, input=text, capture_output=True, timeout=60)
        said = done.stderr.decode(errors="replace")
        if OF_LIBRARIES.search(said):
            self.wrong.append(f"a library's words: {said}")
        if done.returncode not in (0, 2):
            self.wrong.append(f"exit status {done.returncode}: {said}")
        if done.returncode and not said.startswith(f"rolldrop: {'stdin' if text is not None else self.path}"):
            self.wrong.append(f"no file name: {said}")
        return done.returncode == 0, done.stdout, said

    def edited(self, *arguments):
        """Returns True if the file is edited; then also checks that the edit can be undone."""
        is_done, there, said = self.inject("--admin-token", "admin", *arguments)
        if not is_done:
            return False, said
        text = self.path.read_bytes()
        if "rewritten" in said:
            return True, said
        if there == text and "already has the sidecar" not in said:
            self.wrong.append("nothing was edited")
        if self.inject("--admin-token", "admin", *arguments, text=there)[1] != there:
            self.wrong.append("a second injection changes the file")
        if self.inject("--uninject", text=there)[1] != text and not EMPTY.search(text):
            self.wrong.append("uninject does not restore the file")
        return True, said

    def tried(self):
        is_edited, said = self.edited()
        if self.before == "edited":
            if is_edited:
                return "edited as before"
            if NO_HTTP in said:
                return "edited before, and carries no HTTP"
            self.wrong.append(f"edited before: {said}")
            return "edited before, refused now"
        all_workloads = workloads(self.path.read_bytes())
        if len(all_workloads) < 2:
            return "edited now" if is_edited else reason(said)
        if is_edited:
            return "several workloads: edited now"
        for workload in all_workloads:
            if self.edited("--workload", workload)[0]:
                return "several workloads: edited with --workload"
        for workload, ports in re.findall(r":\d+: (\S+/\S+): .* ports ([\d and]+): choose", said):
            # A Service that several workloads share needs all of them.
            all_of_them = [word for one in all_workloads for word in ("--workload", one)]
            for port in ports.split(" and "):
                if any(self.edited(*names, "--port", port)[0] for names in (["--workload", workload], all_of_them)):
                    return "several workloads: edited with --workload and --port"
        return f"several workloads: {reason(said)}"


def reason(said):
    """Returns a refusal without the parts that differ from file to file."""
    first = said.removeprefix("rolldrop: ").splitlines()[0] if said else ""
    for words in ("a template", "no Pod, Deployment", "declares no port", "--port", "node's network", NO_HTTP):
        if words in first:
            return f"refused: {words}"
    return "refused: " + re.sub(r"^\S+ ", "", first)[:90]


def main():
    rolldrop, checkouts, list_of_files = sys.argv[1:]
    files, missing = [], 0
    for line in Path(list_of_files).read_text().splitlines()[1:]:
        repository, path, before = line.split("\t")
        file = Path(checkouts) / repository / path
        if file.is_file():
            files.append((file, before))
        else:
            missing += 1
    with ThreadPoolExecutor(2) as pool:
        tried = list(pool.map(lambda file: File(rolldrop, *file), files))
    for outcome, count in sorted(Counter(file.outcome for file in tried).items()):
        print(f"{count:6} {outcome}")
    print(f"{missing:6} missing")
    wrong = [(file.path, why) for file in tried for why in file.wrong]
    for path, why in wrong:
        print(f"{path}: {why}")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
