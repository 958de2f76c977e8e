"""A gRPC worker: echoes in all four kinds of calls. Messages are bytes, so it needs no generated code."""

import time
from concurrent import futures

import grpc


def called(name):
    print("call", name, flush=True)


def unary(request, context):
    called("unary")
    context.set_trailing_metadata((("x-done", "unary-done"),))
    return b"echo:" + request


def server_stream(request, context):
    called("server_stream")
    for number in range(int(request)):
        yield str(number).encode()
    context.set_trailing_metadata((("x-done", "stream-done"),))


def client_stream(requests, context):
    called("client_stream")
    return str(sum(1 for _ in requests)).encode()


def bidi(requests, context):
    called("bidi")
    for request in requests:
        yield b"echo:" + request


def fail(request, context):
    called("fail")
    context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "no more")


def slow(request, context):
    called("slow")
    while context.is_active():
        time.sleep(0.01)
    return b""


worker = grpc.method_handlers_generic_handler(
    "test.Worker",
    {
        "Unary": grpc.unary_unary_rpc_method_handler(unary),
        "ServerStream": grpc.unary_stream_rpc_method_handler(server_stream),
        "ClientStream": grpc.stream_unary_rpc_method_handler(client_stream),
        "Bidi": grpc.stream_stream_rpc_method_handler(bidi),
        "Fail": grpc.unary_unary_rpc_method_handler(fail),
        "Slow": grpc.unary_unary_rpc_method_handler(slow),
    },
)
server = grpc.server(futures.ThreadPoolExecutor(max_workers=8))
server.add_generic_rpc_handlers((worker,))
port = server.add_insecure_port("127.0.0.1:0")
server.start()
print("port", port, flush=True)
server.wait_for_termination()
