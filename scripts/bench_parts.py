"""Parts shared by bench-load and bench-proxy: descriptors, ports, HTTP/2, the cost of a process as the kernel counts it, and
the interval of a ratio."""

import collections
import contextlib
import math
import os
import pathlib
import re
import resource
import shutil
import socket
import statistics
import subprocess
import sys
import time

# Connections and streams of HTTP/2.
HTTP2_CONNECTIONS = 4
HTTP2_STREAMS = 25
GRPC_METHOD = "grpc.health.v1.Health/Check"
# Names the service "web".
GRPC_MESSAGE = b"\x0a\x03web"
ROOT = pathlib.Path(__file__).resolve().parent.parent


def install_packages(packages):
    """Installs the system's packages of the programs that are missing: a package for each program."""
    os.environ["PATH"] += ":/usr/sbin:/sbin"
    missing = [package for program, package in packages.items() if not shutil.which(program)]
    if missing:
        if os.geteuid() != 0 or not shutil.which("apt-get"):
            sys.exit(f"{sys.argv[0]}: install {' '.join(missing)} first")
        run(["apt-get", "install", "-y", "-qq", *missing], env=os.environ | {"DEBIAN_FRONTEND": "noninteractive"})


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


def waited_s(pid):
    """Returns the longest time for which a thread of a process has waited for a CPU while none of its other threads ran, in
    seconds; 0 once it has exited. With one CPU, threads wait for each other, which says nothing about the machine."""
    threads = []
    for task in pathlib.Path(f"/proc/{pid}/task").glob("*/schedstat"):
        with contextlib.suppress(OSError):
            ran_ns, waited_ns, _ = task.read_text().split()
            threads.append((int(ran_ns), int(waited_ns)))
    all_ran_ns = sum(ran_ns for ran_ns, _ in threads)
    return max((waited_ns - (all_ran_ns - ran_ns) for ran_ns, waited_ns in threads), default=0) / 1e9


def h2load(seconds, url, connections, streams, *more):
    """Returns the command of a client that sends as many requests as it can."""
    return ["h2load", "-t1", f"-c{connections}", f"-m{streams}", "-D", seconds, *more, url]


def h2load_count(out):
    """Returns the number of requests that were answered."""
    return int(re.search(r"(\d+) 2xx", out).group(1))


def grpc_call(directory):
    """Returns the options with which h2load sends a unary call."""
    message = directory / "message"
    message.write_bytes(b"\0" + len(GRPC_MESSAGE).to_bytes(4) + GRPC_MESSAGE)
    return ["-H", "content-type: application/grpc", "-H", "te: trailers", "-d", message]


class RatioInterval(collections.namedtuple("RatioInterval", "lower middle upper")):
    """The median of ratios, and an interval that holds the median of all such ratios with 95 % confidence."""

    @classmethod
    def of(cls, ratios):
        ratios, count = sorted(ratios), len(ratios)
        # As many of the least and of the most ratios lie outside as the binomial distribution allows.
        outside = 0
        while 2 * sum(math.comb(count, below) for below in range(outside + 2)) <= 0.05 * 2**count:
            outside += 1
        return cls(ratios[outside], statistics.median(ratios), ratios[-1 - outside])

    def __str__(self):
        return f"{self.middle:.2f} × ({self.lower:.2f} to {self.upper:.2f})"
