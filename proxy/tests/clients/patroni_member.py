"""A Patroni member without PostgreSQL: Patroni's own access to etcd, and its own way to run callbacks.

patroni_member.py HOST:PORT SCOPE CALLBACK; its name is $OWNER. The callback finds none of the variables but those that its page names.
"""

import os
import sys
import time

from patroni.dcs import get_dcs
from patroni.postgresql.callback_executor import CallbackExecutor

etcd, scope, callback = sys.argv[1:]
name = os.environ.pop("OWNER")
del os.environ["LOCK"]
if "PATRONI_NAME" in os.environ:
    os.environ["PATRONI_NAME"] = name
dcs = get_dcs(
    {
        "etcd3": {"host": etcd},
        "scope": scope,
        "name": name,
        "ttl": 30,
        "loop_wait": 1,
        "retry_timeout": 5,
    }
)
callbacks = CallbackExecutor()
leads = False
while True:
    led = leads
    leader = dcs.get_cluster().leader
    if leader is None:
        leads = bool(dcs.attempt_to_acquire_leader())
        while leads and dcs.get_cluster().leader is None:
            time.sleep(0.01)  # What it reads comes from a watch.
    else:
        leads = leader.name == name and bool(dcs.update_leader(dcs.get_cluster(), None))
    if leads != led:
        role = "primary" if leads else "replica"
        print(f"{name} is a {role}", flush=True)
        callbacks.call([callback, "on_role_change", role, scope])
    time.sleep(0.1)
