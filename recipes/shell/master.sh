#!/usr/bin/env bash
# A master under a lock that others take for it: does the jobs in the file (or FIFO) $JOBS, one of each line, at $WORKER, and
# ends when there are no more, or when a job is not done.
set -euo pipefail

while IFS= read -r job || [[ -n $job ]]; do
    # %header{} needs curl 7.84.
    answer=$(curl -sS -o /dev/null -w '%{http_code} %header{fence-reason}' --data-raw "$job" \
        -H "Fence-Owner: $FENCE_OWNER" -H "Fence-Revision: $FENCE_REVISION" "$WORKER")
    echo "$FENCE_OWNER, revision $FENCE_REVISION, $job: $answer"
    [[ $answer == 2* ]] || exit 1
done <"$JOBS"
