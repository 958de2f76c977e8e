package main

import (
	"os"

	"go.etcd.io/etcd/clientv3/concurrency"
)

// campaign waits until $OWNER leads. Rev is the create revision of the leader's key, which Proclaim leaves as it is.
func campaign(session *concurrency.Session) tenure {
	owner := os.Getenv("OWNER")
	election := concurrency.NewElection(session, os.Getenv("LOCK"))
	check(election.Campaign(background, owner))
	return tenure{owner, election.Rev()}
}
