#!/usr/bin/env bash
# Patroni's callback (postgresql.callbacks.on_role_change and on_start): runs the master.sh beside it for as long as this member leads.
# Patroni ends a callback that still runs, with all that it has started, before it calls the next one.
set -euo pipefail
role=$2 scope=$3
[[ $role == primary || $role == master ]] || exit 0
for name in ETCD PATRONI_NAME WORKER JOBS; do
    if [[ -z ${!name:-} ]]; then
        echo "$name has to be in Patroni's environment" >&2
        exit 1
    fi
done
export ETCDCTL_API=3 ETCDCTL_ENDPOINTS=$ETCD

record=$(etcdctl get "/service/$scope/leader" --write-out fields)
field() { sed -n "s/^\"$1\" : \"\?\([^\"]*\)\"\?$/\1/p" <<<"$record"; }
if [[ $(field Value) != "$PATRONI_NAME" ]]; then
    echo "$PATRONI_NAME leads no more" >&2
    exit 1
fi
FENCE_OWNER=$PATRONI_NAME FENCE_REVISION=$(field CreateRevision) exec "$(dirname "${BASH_SOURCE[0]}")/master.sh"
