"""What a scenario of the library says of itself in its file."""
import re

import runs

FOLDER = runs.REPOSITORY / "scenarios"
HEADER = {"seen": "# What one sees: ", "source": "# Source: "}


def text(name):
    return (FOLDER / f"{name}.yaml").read_text()


def header(name, which):
    """A line of a scenario's header, without what it begins with."""
    lines = text(name).splitlines()
    return next(line.removeprefix(HEADER[which]) for line in lines if line.startswith(HEADER[which]))


def annotation(name, key):
    """An annotation of a scenario; None if it has none of this key."""
    found = re.search(rf"^    {key}: (.*)$", text(name), re.MULTILINE)
    return found and found[1]


def takes_s(name):
    """How long it takes, as its file says."""
    minutes, seconds = re.fullmatch(r"(?:(\d+)m)?(?:(\d+)s)?", annotation(name, "takes")).groups()
    return 60 * int(minutes or 0) + int(seconds or 0)


def claims(name):
    """The claims of docs/sources.md that it shows."""
    return re.findall(r"\bC\d+\b", header(name, "source"))
