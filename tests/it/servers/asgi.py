"""An app for uvicorn."""

import asyncio
import os

HEADERS = [(b"content-length", b"13"), (b"x-pod", os.environ.get("POD_NAME", "").encode())]


async def app(scope, receive, send):
    if scope["type"] != "http":
        return
    await asyncio.sleep(0.01)
    await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
    await send({"type": "http.response.body", "body": b"from uvicorn\n"})
