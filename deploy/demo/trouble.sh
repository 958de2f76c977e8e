#!/usr/bin/env bash
# Makes trouble for the masters of a running `docker compose up`: one is paused and wakes up too late, one is killed, and at
# last a write comes back from an earlier tenure of the very owner that holds the lock. Watch `docker compose logs -f`
# beside it, and the dashboard at http://127.0.0.1:3000.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

lock=/shards/2/lock

main() {
    echo "== 1. A pause. The holder stops, its lease runs out, the other takes the lock, the first wakes up and writes on."
    wait_until some_master_holds
    local first second
    first=$(holder)
    second=$(other_than "$first")
    pause "$first"
    wait_until "$second" holds
    docker compose unpause "$first"
    wait_until "$first" was_refused stale-tenure

    echo "== 2. A crash. The holder is killed, the other goes on."
    docker compose kill "$second"
    wait_until "$first" holds
    docker compose start "$second"

    echo "== 3. A replay. The holder stops, the other takes the lock and crashes, and a new process takes it under the name of"
    echo "==    the first. Then the first wakes up: its write has the right owner, and the wrong revision."
    pause "$first"
    wait_until "$second" holds
    docker compose kill "$second"
    docker compose run --detach --rm --no-deps --name "$first-again" "$first"
    wait_until "$first" holds
    docker compose unpause "$first"
    wait_until "$first" was_refused replayed-tenure

    docker kill "$first-again"
    docker compose start "$second"
    echo "== Done. No refused write has reached the worker: see docker compose logs worker. For how the fence saw it:"
    echo "==    docker compose exec prometheus wget -qO- http://127.0.0.1:9901/locks"
}

pause() {
    paused_at=$SECONDS
    docker compose pause "$1"
}
holder() { docker compose exec -T etcd-0 etcdctl get --print-value-only "$lock"; }
some_master_holds() { [[ -n $(holder) ]]; }
holds() { [[ $(holder) == "$1" ]]; }
was_refused() { docker compose logs --since "$((SECONDS - paused_at + 1))s" "$1" | grep "REFUSED.* $2" | tail -n 1 | grep .; }
other_than() { [[ $1 == shard-1 ]] && echo shard-2 || echo shard-1; }

wait_until() { # wait_until CONDITION, or wait_until MASTER CONDITION ARGUMENT...
    local deadline=$((SECONDS + 60))
    if (($# > 1)); then
        echo "-- until $*"
        set -- "$2" "$1" "${@:3}"
    fi
    until "$@"; do
        ((SECONDS < deadline)) || { echo "not within a minute: $*" >&2 && exit 1; }
        sleep 0.2
    done
}

main
