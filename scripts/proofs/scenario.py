"""Reads what a scenario of the library states about itself in its file."""
import re

import runs

FOLDER = runs.REPOSITORY / "scenarios"
HEADER = {"seen": "# What one sees: ", "source": "# Source: "}


def text(name):
    return (FOLDER / f"{name}.yaml").read_text()


def header(name, which):
    """Returns a line of a scenario's header, without its prefix."""
    lines = text(name).splitlines()
    return next(line.removeprefix(HEADER[which]) for line in lines if line.startswith(HEADER[which]))


def annotation(name, key):
    """Returns an annotation of a scenario; None if the key is missing."""
    found = re.search(rf"^    {key}: (.*)$", text(name), re.MULTILINE)
    return found and found[1]


def takes_s(name):
    """Returns the duration stated in the scenario's file."""
    minutes, seconds = re.fullmatch(r"(?:(\d+)m)?(?:(\d+)s)?", annotation(name, "takes")).groups()
    return 60 * int(minutes or 0) + int(seconds or 0)


def claims(name):
    """Returns the claims of docs/sources.md that the scenario shows."""
    return re.findall(r"\bC\d+\b", header(name, "source"))
