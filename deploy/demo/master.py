"""A master under `fencepost hold`: writes through fencepost for as long as it runs.

It knows nothing of etcd. hold runs it when it has the lock, ends it when the lock is lost, and tells it the token that has to go
with each write, in FENCE_OWNER and FENCE_REVISION.
"""

import http.client
import itertools
import json
import os
import signal
import time

OWNER = os.environ["FENCE_OWNER"]
REVISION = os.environ["FENCE_REVISION"]
FENCEPOST = os.environ["FENCEPOST"]  # host:port
WRITE_TO = os.environ["WRITE_TO"]  # a path

TOKEN = {"Fence-Owner": OWNER, "Fence-Revision": REVISION}
WRITE_EVERY = 0.2
TIMEOUT = 2


def say(line):
    print(f"{OWNER}: revision {REVISION}{line}", flush=True)


def post(body):
    connection = http.client.HTTPConnection(FENCEPOST, timeout=TIMEOUT)
    try:
        connection.request("POST", WRITE_TO, body, TOKEN)
        answer = connection.getresponse()
        return answer, answer.read()
    finally:
        connection.close()


say(" begins")
for number in itertools.count(1):
    try:
        answer, body = post(f"{OWNER}, revision {REVISION}, write {number}")
    except (OSError, http.client.HTTPException) as error:
        say(f", write {number}: no answer, {error}")  # It may have been done.
        time.sleep(WRITE_EVERY)
        continue
    reason = answer.getheader("Fence-Reason")
    if reason is None:
        say(f", write {number}: {answer.status}")
    else:
        say(f", write {number}: REFUSED, {answer.status} {reason}")
        if json.loads(body)["action"] != "retry":
            signal.pause()  # The lock is lost. hold hears of it as well, and ends this process.
        time.sleep(int(answer.getheader("Retry-After", 1)))
    time.sleep(WRITE_EVERY)
