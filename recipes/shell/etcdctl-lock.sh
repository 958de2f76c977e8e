#!/usr/bin/env bash
# Runs master.sh under a lock of `etcdctl lock`.
set -euo pipefail
export ETCDCTL_API=3 ETCDCTL_ENDPOINTS=$ETCD
master=$(dirname "${BASH_SOURCE[0]}")/master.sh

# The owner is the key that this session waits and holds with: no two tenures have the same.
# shellcheck disable=SC2016 # The inner shell is to expand them.
exec etcdctl lock "$LOCK" -- bash -c 'FENCE_OWNER=$ETCD_LOCK_KEY FENCE_REVISION=$ETCD_LOCK_REV exec "$0"' "$master"
