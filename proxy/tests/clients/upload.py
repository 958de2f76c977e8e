"""Uploads with Python's own HTTP client, which sends the whole body before it reads anything: twice on one connection if it
is kept, once on a connection of its own, once in chunks. Prints the status and the reason of each answer."""

import http.client
import sys

address, owner, revision, size = sys.argv[1:]
headers = {"Fence-Owner": owner, "Fence-Revision": revision}
body = b"x" * int(size)


def upload(connection, **how):
    connection.request("POST", "/upload", headers=headers, **how)
    answer = connection.getresponse()
    answer.read()
    print(answer.status, answer.getheader("Fence-Reason"))


kept = http.client.HTTPConnection(address, timeout=20)
upload(kept, body=body)
upload(kept, body=body)
upload(http.client.HTTPConnection(address, timeout=20), body=body)
pieces = (body[start : start + 65536] for start in range(0, len(body), 65536))
upload(http.client.HTTPConnection(address, timeout=20), body=pieces, encode_chunked=True)
