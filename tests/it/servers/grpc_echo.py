"""A server on gRPC's own core, whose method /test.Echo/Say returns the request. After SIGTERM, calls have 5 s left."""

import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor

import grpc


def say(request, context):
    context.send_initial_metadata([("x-pod", os.environ["POD_NAME"])])
    return request


ended = threading.Event()
signal.signal(signal.SIGTERM, lambda *_: ended.set())
server = grpc.server(ThreadPoolExecutor(16))
methods = {"Say": grpc.unary_unary_rpc_method_handler(say)}
server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("test.Echo", methods)])
server.add_insecure_port("0.0.0.0:8080")
server.start()
ended.wait()
server.stop(5).wait()
