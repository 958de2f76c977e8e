"""Masters that hold locks with kazoo: takes orders from its input, a line each.

    take PATH OWNER   takes a lock, with its present holder waiting to be followed: prints node and czxid
    release PATH      releases it: prints "released"
"""

import sys
import threading

from kazoo.client import KazooClient

zk = KazooClient(hosts=sys.argv[1])
zk.start()
held = {}
for line in sys.stdin:
    order, path, *owner = line.split()
    if order == "take":
        lock = zk.Lock(path, owner[0])
        taking = threading.Thread(target=lock.acquire)
        taking.start()
        if path in held:
            held.pop(path).release()
        taking.join()
        held[path] = lock
        node = lock.path + "/" + lock.node
        print(node, zk.exists(node).czxid, flush=True)
    else:
        held.pop(path).release()
        print("released", flush=True)
