"""Parts shared by bench-load and bench-proxy: descriptors, ports, and the cost of a process as the kernel counts it."""

import contextlib
import pathlib
import re
import resource
import socket
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent


def allow_files(wanted):
    """Raises the limit of open files to the wanted number, or as far as allowed; returns the limit."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    for most in (max(hard, wanted), hard):
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
            return most
    return hard


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as free:
        return free.getsockname()[1]


def wait_for(port):
    deadline = time.monotonic() + 30
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def run(command, **kwargs):
    subprocess.run([str(part) for part in command], check=True, stdout=sys.stderr, **kwargs)


def status_mib(pid, field):
    """Returns a figure of a process's memory, such as VmRSS; None once the process has exited."""
    figure = re.search(rf"{field}:\s+(\d+) kB", pathlib.Path(f"/proc/{pid}/status").read_text())
    return int(figure.group(1)) / 1024 if figure else None
