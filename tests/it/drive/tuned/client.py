"""A client independent of rolldrop: sends requests at a constant rate, each on its own connection. Prints each failure
with its time, and finally the numbers of answered and of failed requests.

    client.py HOST PORT SECONDS RATE
"""
import asyncio, collections, sys, time

HOST, PORT, SECONDS, RATE = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), float(sys.argv[4])
REQUEST = f"GET / HTTP/1.1\r\nHost: {HOST}\r\nConnection: close\r\n\r\n".encode()
counts = collections.Counter()


async def request(due):
    await asyncio.sleep(max(0, due - time.monotonic()))
    try:
        reader, writer = await asyncio.wait_for(asyncio.open_connection(HOST, PORT), 1)
        writer.write(REQUEST)
        answer = await asyncio.wait_for(reader.read(), 5)
        writer.close()
        failure = None if answer.startswith(b"HTTP/1.1 200 ") else f"answered {answer[:20]!r}"
    except (OSError, asyncio.TimeoutError) as error:
        failure = type(error).__name__
    counts["failed" if failure else "answered"] += 1
    if failure:
        print(f"{time.time():.3f} {failure}")


async def load():
    begin = time.monotonic()
    await asyncio.gather(*(request(begin + number / RATE) for number in range(int(SECONDS * RATE))))


asyncio.run(load())
print(counts["answered"], counts["failed"])
