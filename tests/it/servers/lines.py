"""Streams of JSON lines from a WSGI generator, for gunicorn.

The file JOURNAL gets a JSON line at the end of each stream, with the fields of the sample server's log.
"""

import json
import os
import random
import time

HEADERS = [("content-type", "application/x-ndjson"), ("x-pod", os.environ.get("POD_NAME", ""))]
JOURNAL = os.open(os.environ["JOURNAL"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
GAP_S = 0.05


def app(environ, start_response):
    start_response("200 OK", HEADERS)
    return [b"ready\n"] if environ["PATH_INFO"] == "/" else lines(environ.get("HTTP_ROLLDROP_ID"))


def lines(id):
    """Yields a stream's lines, and logs how it ended. A worker that is killed writes nothing."""
    until = time.monotonic() + min(random.expovariate(1 / 1.5), 6)
    sent, ended = 0, "client_gone"
    try:
        while time.monotonic() < until:
            sent += 1
            yield b'{"response": "%d", "done": false}\n' % sent
            time.sleep(GAP_S)
        yield b'{"response": "", "done": true}\n'
        ended = "complete"
    finally:
        line = {"event": "stream_ended", "id": id, "events": sent, "end": ended, "ended_ns": time.time_ns()}
        os.write(JOURNAL, (json.dumps(line) + "\n").encode())
