package main

import (
	"os"

	"go.etcd.io/etcd/clientv3/concurrency"
)

// lock waits for the mutex. Its owner is the session's own key below $LOCK; the header's revision is one at which that key was
// the oldest there: its create revision, or a later one if the mutex had to be waited for.
func lock(session *concurrency.Session) tenure {
	mutex := concurrency.NewMutex(session, os.Getenv("LOCK"))
	check(mutex.Lock(background))
	return tenure{mutex.Key(), mutex.Header().Revision}
}
