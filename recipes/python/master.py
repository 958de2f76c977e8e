"""A master that does the jobs in the file (or FIFO) $JOBS, one of each line, at $WORKER, under a lock of etcd3gw.

etcd3gw speaks with etcd's JSON gateway, and so needs neither gRPC nor protobuf.
"""

import os
import signal
import sys
import threading
import time
import urllib.error
import urllib.parse
import urllib.request

import etcd3gw

TTL = 9  # Seconds.

etcd = urllib.parse.urlsplit(os.environ["ETCD"])
client = etcd3gw.client(etcd.hostname, etcd.port, timeout=TTL / 3)


def take(name):
    """Waits for the lock and takes it; returns it with its create revision."""
    lock = client.lock(name, ttl=TTL)
    while not lock.acquire():
        lock.lease.revoke()
        # The events of a key come one by one; a deletion may have been before the watch began, so this has a limit.
        try:
            client.watch_once(lock.key, timeout=TTL)
        except etcd3gw.exceptions.WatchTimedOut:
            pass
    [(_, record)] = client.get(lock.key, metadata=True)
    return lock, record["create_revision"]


def clock():
    """Seconds since the machine was started, in which it may have been suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def renew(lock):
    """Renews the lease. If that is not done again in time, the process ends, whatever it is doing: two thirds of the time to
    live after this was sent.
    """
    sent = clock()
    if lock.refresh() <= 0:
        raise RuntimeError("the lease is gone")
    # Nothing handles SIGALRM, so it ends the process.
    signal.setitimer(signal.ITIMER_REAL, max(sent + TTL * 2 / 3 - clock(), 0.001))


def keep(lock, lost):
    """Renews the lease until that is not confirmed."""
    try:
        while not lost.wait(TTL / 3):
            renew(lock)
    except Exception as error:
        print(f"cannot renew: {error}", flush=True)
        lost.set()


def do(job, token):
    """Does a job; returns the status and why it was refused."""
    request = urllib.request.Request(os.environ["WORKER"], job.encode(), token)
    try:
        with urllib.request.urlopen(request) as answer:
            return answer.status, ""
    except urllib.error.HTTPError as answer:
        return answer.status, answer.headers.get("Fence-Reason", "")


def work(owner, revision, lost):
    """Does the jobs, and begins none when the lock is lost; says whether it got to their end."""
    token = {"Fence-Owner": owner, "Fence-Revision": revision}
    with open(os.environ["JOBS"]) as jobs:
        for job in map(str.rstrip, jobs):
            if lost.is_set():
                print("the lock is lost", flush=True)
                return False
            status, reason = do(job, token)
            print(f"{owner}, revision {revision}, {job}: {status} {reason}", flush=True)
            if status >= 300:
                return False
    return True


lock, revision = take(os.environ["LOCK"])
lost = threading.Event()
renew(lock)
threading.Thread(target=keep, args=[lock, lost], daemon=True).start()
done = work(lock.uuid, revision, lost)
lock.lease.revoke()
sys.exit(0 if done else 1)
