"""A master: takes a lock in etcd, and writes through fencepost for as long as it believes that it holds it.

Like most masters it can be wrong about that. It never looks at the clock before it writes, so one that was paused wakes up and
writes on. What stops it is a refusal.

What is fenced is in `Master.take`: the revision that etcd gave to the tenure goes with each write.
"""

import base64
import http.client
import itertools
import json
import os
import threading
import time

OWNER = os.environ["OWNER"]
ETCD = os.environ["ETCD"].split(",")  # host:port of each member
LOCK = os.environ["LOCK"]
FENCEPOST = os.environ["FENCEPOST"]  # host:port
WRITE_TO = os.environ["WRITE_TO"]  # a path

LEASE_SECONDS = 3
WRITE_EVERY = 0.2
TIMEOUT = 2


def say(line):
    print(f"{OWNER}: {line}", flush=True)


def post(address, path, body, headers={}):
    connection = http.client.HTTPConnection(address, timeout=TIMEOUT)
    try:
        connection.request("POST", path, body, headers)
        answer = connection.getresponse()
        return answer, answer.read()
    finally:
        connection.close()


def etcd(call, **question):
    """Asks etcd's JSON gateway: one member after the other, until one answers."""
    for address in ETCD:
        try:
            answer, body = post(address, f"/v3/{call}", json.dumps(question))
        except (OSError, http.client.HTTPException) as error:
            problem = f"{address}: {error}"
            continue
        if answer.status == 200:
            return json.loads(body)
        problem = f"{address}: {answer.status} {body.decode(errors='replace').strip()}"
    raise ConnectionError(problem)


def text(plain):
    """Bytes, as the gateway wants them."""
    return base64.b64encode(plain.encode()).decode()


class Master:
    def __init__(self):
        self.lease = None

    def take(self):
        """Takes the lock if nobody has it; returns the revision of that write, which names the tenure."""
        self.lease = etcd("lease/grant", TTL=LEASE_SECONDS)["ID"]
        absent = {"key": text(LOCK), "target": "CREATE", "result": "EQUAL", "createRevision": 0}
        put = {"requestPut": {"key": text(LOCK), "value": text(OWNER), "lease": self.lease}}
        answer = etcd("kv/txn", compare=[absent], success=[put])
        if answer.get("succeeded"):
            return int(answer["header"]["revision"])
        etcd("lease/revoke", ID=self.lease)
        return None

    def wait_for_lock(self):
        say("waits for the lock")
        while True:
            try:
                if revision := self.take():
                    say(f"holds the lock, revision {revision}")
                    return revision
            except ConnectionError as error:
                say(f"etcd does not answer: {error}")
            time.sleep(LEASE_SECONDS / 4)

    def renew(self, ended):
        """Keeps the lease alive. That it is gone stops nobody: the write that follows is the one to be fenced."""
        while not ended.wait(LEASE_SECONDS / 3):
            try:
                answer = etcd("lease/keepalive", ID=self.lease)
                if int(answer["result"].get("TTL", 0)) == 0:
                    return say("its lease has run out")
            except ConnectionError as error:
                say(f"cannot renew its lease: {error}")

    def write_while_holding(self, revision):
        """Writes until it is told that it holds the lock no more."""
        token = {"Fence-Owner": OWNER, "Fence-Revision": str(revision)}
        for number in itertools.count(1):
            try:
                answer, body = post(FENCEPOST, WRITE_TO, f"{OWNER}, revision {revision}, write {number}", token)
            except (OSError, http.client.HTTPException) as error:
                say(f"revision {revision}, write {number}: no answer, {error}")  # It may have been done.
                time.sleep(WRITE_EVERY)
                continue
            reason = answer.getheader("Fence-Reason")
            if reason is None:
                say(f"revision {revision}, write {number}: {answer.status}")
            else:
                say(f"revision {revision}, write {number}: REFUSED, {answer.status} {reason}")
                if json.loads(body)["action"] != "retry":
                    return
                time.sleep(int(answer.getheader("Retry-After", 1)))
            time.sleep(WRITE_EVERY)

    def run(self):
        while True:
            revision = self.wait_for_lock()
            ended = threading.Event()
            renewal = threading.Thread(target=self.renew, args=[ended], daemon=True)
            renewal.start()
            self.write_while_holding(revision)
            ended.set()
            renewal.join()


Master().run()
