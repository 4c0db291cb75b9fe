"""Streams of server-sent events from Starlette, for uvicorn.

At the end of each stream, appends a JSON line to the file JOURNAL, with the fields of the sample server's log.
"""

import asyncio
import json
import os
import random
import time

from sse_starlette import EventSourceResponse
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse, StreamingResponse
from starlette.routing import Route

POD = os.environ.get("POD_NAME", "")
JOURNAL = os.open(os.environ["JOURNAL"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
GAP_S = 0.05


async def events(request):
    """Yields the numbers of a stream's events, and logs how the stream ended."""
    length_s = min(random.expovariate(1 / 1.5), 6)
    sent, ended = 0, "cancelled"
    began = time.monotonic()
    try:
        while time.monotonic() - began < length_s:
            sent += 1
            yield sent
            await asyncio.sleep(GAP_S)
        ended = "complete"
        yield None
    finally:
        id = request.headers.get("rolldrop-id")
        line = {"event": "stream_ended", "id": id, "events": sent, "end": ended, "ended_ns": time.time_ns()}
        os.write(JOURNAL, (json.dumps(line) + "\n").encode())


async def plain(request):
    async def body():
        async for number in events(request):
            yield "data: [DONE]\n\n" if number is None else f"data: {number}\n\n"

    return StreamingResponse(body(), media_type="text/event-stream", headers={"x-pod": POD})


async def sse(request):
    async def body():
        async for number in events(request):
            yield {"data": "[DONE]" if number is None else str(number)}

    return EventSourceResponse(body(), headers={"x-pod": POD})


app = Starlette(
    routes=[
        Route("/plain", plain),
        Route("/sse", sse),
        Route("/", lambda _: PlainTextResponse("ready\n", headers={"x-pod": POD})),
    ]
)
