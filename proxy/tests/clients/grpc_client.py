"""Calls the gRPC worker in all four ways under one token and prints what came of each; with `--refused` it prints the status,
the message and the reason of calls that are refused."""

import queue
import sys

import grpc

address, owner, revision = sys.argv[1:4]
token = (("fence-owner", owner), ("fence-revision", revision))
channel = grpc.insecure_channel(address, options=(("grpc.enable_retries", 0),))
unary = channel.unary_unary("/test.Worker/Unary")
server_stream = channel.unary_stream("/test.Worker/ServerStream")
client_stream = channel.stream_unary("/test.Worker/ClientStream")
bidi = channel.stream_stream("/test.Worker/Bidi")


def metadata(pairs):
    return {key: value for key, value in pairs or ()}


def refused(call):
    try:
        call()
        print("not refused")
    except grpc.RpcError as error:
        # A trailers-only answer: grpcio shows its headers as initial or as trailing metadata.
        found = {**metadata(error.initial_metadata()), **metadata(error.trailing_metadata())}
        print(error.code().name, error.details(), found.get("fence-reason"))


if sys.argv[4:] == ["--refused"]:
    refused(lambda: unary(b"x" * 1000000, metadata=token, timeout=20))
    refused(lambda: list(server_stream(b"10", metadata=token, timeout=20)))
    refused(lambda: list(bidi(iter([b"x"] * 10), metadata=token, timeout=20)))
    sys.exit()

answer, call = unary.with_call(b"hello", metadata=token, timeout=20)
print("unary ok:", answer.decode(), "trailing=" + metadata(call.trailing_metadata())["x-done"])

answer = unary(b"x" * 1000000, metadata=token, timeout=20)
print("unary", len(answer) - len(b"echo:"), "bytes ok")

stream = server_stream(b"10", metadata=token, timeout=20)
numbers = [number.decode() for number in stream]
print("server stream ok:", *numbers, "trailing=" + metadata(stream.trailing_metadata())["x-done"])

answer = client_stream(iter([b"x" * 1000] * 100), metadata=token, timeout=20)
print("client stream ok:", answer.decode())

# Each message is sent only when the answer to the one before is here.
outbox = queue.Queue()
stream = bidi(iter(outbox.get, None), metadata=token, timeout=20)
answers = 0
for number in range(20):
    outbox.put(str(number).encode())
    assert next(stream) == b"echo:" + str(number).encode()
    answers += 1
outbox.put(None)
assert list(stream) == []
print("bidi ok:", answers)

try:
    channel.unary_unary("/test.Worker/Fail")(b"", metadata=token, timeout=20)
except grpc.RpcError as error:
    print("error from the worker:", error.code().name, error.details())

try:
    channel.unary_unary("/test.Worker/Slow")(b"", metadata=token, timeout=0.5)
except grpc.RpcError as error:
    print("deadline:", error.code().name)
