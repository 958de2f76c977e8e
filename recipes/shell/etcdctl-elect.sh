#!/usr/bin/env bash
# Runs master.sh while $OWNER is the leader of an election of `etcdctl elect`.
set -euo pipefail
export ETCDCTL_API=3 ETCDCTL_ENDPOINTS=$ETCD
master=$(dirname "${BASH_SOURCE[0]}")/master.sh

# Prints its key and its proposal as soon as it leads, and runs on for as long as its session and this script live: after a SIGKILL
# it would hold the lock for ever.
coproc ELECT { exec setpriv --pdeathsig TERM etcdctl elect "$LOCK" "$OWNER"; }
elect=$ELECT_PID
trap 'kill "$elect" 2>/dev/null && wait "$elect" || true' EXIT # On SIGTERM it resigns.
read -r key <&"${ELECT[0]}"
revision=$(etcdctl get "$key" --write-out fields | sed -n 's/^"CreateRevision" : //p')

set -m # The master is a process group, which is ended with all that is in it.
FENCE_OWNER=$OWNER FENCE_REVISION=$revision "$master" &
working=$!
set +m
trap 'kill -- "-$working" 2>/dev/null || true; kill "$elect" 2>/dev/null && wait "$elect" || true' EXIT
status=0
wait -n "$working" "$elect" || status=$?
if ! kill -0 "$elect" 2>/dev/null; then
    echo "the session of $key is over" >&2
    status=1
fi
exit "$status"
