"""An app for gunicorn."""

import os
import time

HEADERS = [("content-length", "14"), ("x-pod", os.environ.get("POD_NAME", ""))]


def app(environ, start_response):
    time.sleep(0.01)
    start_response("200 OK", HEADERS)
    return [b"from gunicorn\n"]
