#!/usr/bin/env bash
# Makes trouble for the masters of a running `docker compose up`: a write of one is held back by the network until its lock is
# another's, one is killed, and at last a write comes back from an earlier tenure of the very owner that holds the lock. Watch
# `docker compose logs -f` beside it, and the dashboard at http://127.0.0.1:3000.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

lock=/shards/2/lock

# Compose 2 is a part of docker, Compose 1 a program of its own.
compose=(docker compose)
docker compose version >/dev/null 2>&1 || compose=(docker-compose)
compose() { "${compose[@]}" "$@"; }

main() {
    echo "== 1. A late write. The network holds back what the holder sends, and the holder stops. Its lease runs out, the other"
    echo "==    takes the lock. Then the network lets go. The holder wakes up, and hold ends its command."
    wait_until some_master_holds
    local first second late
    first=$(holder)
    second=$(other_than "$first")
    wait_until "$first" has_written
    late=$(revision)
    hold_back "$first"
    wait_until "$first" is_held_back "$late"
    compose pause "$first"
    wait_until "$second" holds
    let_go "$first"
    wait_until "$first" was_refused "$late" stale-tenure
    compose unpause "$first"

    echo "== 2. A crash. The holder is killed, the other goes on."
    wait_until "$second" has_written
    compose kill "$second"
    wait_until "$first" holds
    compose start "$second"

    echo "== 3. A replay. The network holds back what the holder sends, the holder stops, the other takes the lock and crashes, and a"
    echo "==    new process takes it under the name of the first. Then the network lets go: that write has the right owner, and the"
    echo "==    wrong revision."
    wait_until "$first" has_written
    late=$(revision)
    hold_back "$first"
    wait_until "$first" is_held_back "$late"
    compose pause "$first"
    wait_until "$second" has_written
    compose kill "$second"
    compose run --detach --rm --no-deps --name "$first-again" -e FENCEPOST=fencepost:8080 "$first"
    wait_until "$first" holds
    let_go "$first"
    wait_until "$first" was_refused "$late" replayed-tenure
    compose unpause "$first"

    docker kill "$first-again"
    compose start "$second"
    echo "== Done. No refused write has reached the worker: see docker compose logs worker. For how the fence saw it:"
    echo "==    docker compose exec prometheus wget -qO- http://127.0.0.1:9901/locks"
}

holder() { compose exec -T etcd-0 etcdctl get --print-value-only "$lock"; }
revision() { compose exec -T etcd-0 etcdctl get --write-out=fields "$lock" | sed -n 's/^"CreateRevision" : //p'; }
some_master_holds() { [[ -n $(holder) ]]; }
holds() { [[ $(holder) == "$1" ]]; }
has_written() { compose logs worker | grep "begin $1, revision $(revision), " | tail -n 1 | grep .; }
hold_back() { compose kill -s SIGUSR1 "network-${1#shard-}"; }
let_go() { compose kill -s SIGUSR2 "network-${1#shard-}"; }
is_held_back() { compose logs "network-${1#shard-}" | grep "holds back $1, revision $2, " | tail -n 1 | grep .; }
was_refused() {
    compose logs fencepost | grep "request refused .* owner=\"$1\" revision=$2 reason=\"$3\" " | tail -n 1 | grep .
}
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
