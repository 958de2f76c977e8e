#!/usr/bin/env bash
# Runs master.sh under a lock that curl takes by etcd's JSON gateway. Needs jq.
set -euo pipefail
master=$(dirname "${BASH_SOURCE[0]}")/master.sh
ttl=9 # Seconds.

etcd() { curl -sS --fail --max-time "${3:-3}" "$ETCD/v3/$1" --data-binary "$2"; }
# Whole seconds since the machine was started, in which it may have been suspended.
now() { cut -d. -f1 /proc/uptime; }
key=$(printf %s "$LOCK" | base64 -w 0)
owner=$(printf %s "$OWNER" | base64 -w 0)

# Takes the lock if nobody has it. The revision of that transaction is the create revision of the key.
take() {
    local answer
    revision=
    lease=$(etcd lease/grant "{\"TTL\": $ttl}" | jq -r .ID)
    [[ -n $lease ]] || return
    answer=$(etcd kv/txn "{\"compare\": [{\"key\": \"$key\", \"target\": \"CREATE\", \"result\": \"EQUAL\", \"create_revision\": 0}],
        \"success\": [{\"request_put\": {\"key\": \"$key\", \"value\": \"$owner\", \"lease\": \"$lease\"}}]}")
    revision=$(jq -r .header.revision <<<"$answer")
    [[ $(jq .succeeded <<<"$answer") == true ]]
}

# Waits for the key's deletion after that revision: a stream, of which curl prints each event as it comes.
until_free() {
    # Etcd may not have answered.
    [[ -n $revision ]] || { sleep 1; return; }
    local from=$((revision + 1)) events watching
    exec {events}< <(exec curl -sSN --max-time 60 "$ETCD/v3/watch" \
        --data-binary "{\"create_request\": {\"key\": \"$key\", \"start_revision\": $from}}")
    watching=$!
    # If the stream has ended, the lock is asked for again. So it is each minute: a stream may be silent for ever.
    grep -q '"type":"DELETE"' <&"$events" || sleep 1
    kill "$watching" 2>/dev/null || true
    exec {events}<&-
}

give_back() { etcd lease/revoke "{\"ID\": \"$lease\"}" >/dev/null 2>&1 || true; }

# Renews the lease within so many seconds. It is renewed as of when that was asked for.
renew() {
    local sent
    sent=$(now)
    (($1 > 0)) || return
    etcd lease/keepalive "{\"ID\": \"$lease\"}" "$1" | jq -e '(.result.TTL // 0 | tonumber) > 0' >/dev/null || return
    renewed=$sent
}

# Returns when the script is gone, or a renewal was not confirmed: two thirds of the time to live after the last one that was, at the latest.
keep() {
    local due
    while true; do
        due=$((renewed + ttl / 3 - $(now)))
        sleep $((due > 0 ? due : 0))
        # A script that SIGKILL has ended leaves this behind, which would hold the lock for ever.
        grep -qx "PPid:\s$$" "/proc/$BASHPID/status" || return 0
        # The second that has begun counts as over.
        renew $((renewed + ttl * 2 / 3 - $(now) - 1)) || return 0
    done
}

trap give_back EXIT
until take && renew 3; do
    give_back
    until_free
done
set -m # The master is a process group, which is ended with all that is in it.
FENCE_OWNER=$OWNER FENCE_REVISION=$revision "$master" &
working=$!
set +m
keep &
keeping=$!
trap 'kill -- "-$working" "$keeping" 2>/dev/null || true; give_back' EXIT
status=0
wait -n "$working" "$keeping" || status=$?
if ! kill -0 "$keeping" 2>/dev/null; then
    echo "the lease of $LOCK is over" >&2
    status=1
fi
exit "$status"
