"""A worker as it has always been: it does what it is told, and knows nothing of locks.

It prints a line when it begins with a request and a line when it has done it.
"""

import os
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

WORK_SECONDS = 0.05

printing = threading.Lock()


def say(line):
    with printing:
        print(line, flush=True)


class Worker(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        write = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode(errors="replace")
        say(f"begin {write}")
        time.sleep(WORK_SECONDS)
        say(f"end {write}")
        answer = b"done\n"
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_):
        pass


host, port = os.environ["LISTEN"].rsplit(":", 1)
server = ThreadingHTTPServer((host, int(port)), Worker)
say(f"listening on port {server.server_address[1]}")
server.serve_forever()
