// A master that does the jobs in the file (or FIFO) $JOBS, one of each line, at $WORKER, under a lock of etcd's own Go client:
// `masters mutex` or `masters election`.
package main

import (
	"bufio"
	"context"
	"fmt"
	"log"
	"net/http"
	"os"
	"strconv"
	"strings"

	// Up to etcd 3.4; since 3.5 it is go.etcd.io/etcd/client/v3, and the same.
	"go.etcd.io/etcd/clientv3"
	"go.etcd.io/etcd/clientv3/concurrency"
)

// A tenure is what goes with each request.
type tenure struct {
	owner    string
	revision int64
}

func main() {
	kinds := map[string]func(*concurrency.Session) tenure{"mutex": lock, "election": campaign}
	if len(os.Args) != 2 || kinds[os.Args[1]] == nil {
		log.Fatal("usage: masters mutex|election")
	}
	client, err := clientv3.New(clientv3.Config{Endpoints: strings.Split(os.Getenv("ETCD"), ",")})
	check(err)
	session, err := concurrency.NewSession(client, concurrency.WithTTL(10)) // Seconds.
	check(err)
	held := kinds[os.Args[1]](session)
	fmt.Printf("%s holds the lock, revision %d\n", held.owner, held.revision)
	jobs := make(chan string)
	go read(jobs)
	done := work(jobs, held, session.Done())
	session.Close() // Revokes the lease, and with it the lock.
	if !done {
		os.Exit(1)
	}
}

// Does the jobs, and begins none when the session is over.
func work(jobs <-chan string, held tenure, lost <-chan struct{}) bool {
	for {
		var job string
		var more bool
		select {
		case <-lost:
		case job, more = <-jobs:
		}
		// Asked again: of two that are ready, select takes either.
		if over(lost) {
			fmt.Println("the session is over")
			return false
		}
		if !more {
			return true
		}
		answer := do(job, held)
		fmt.Printf("%s, revision %d, %s: %d %s\n", held.owner, held.revision, job, answer.StatusCode,
			answer.Header.Get("Fence-Reason"))
		if answer.StatusCode >= 300 {
			return false
		}
	}
}

func over(lost <-chan struct{}) bool {
	select {
	case <-lost:
		return true
	default:
		return false
	}
}

func do(job string, held tenure) *http.Response {
	request, err := http.NewRequest("POST", os.Getenv("WORKER"), strings.NewReader(job))
	check(err)
	request.Header.Set("Fence-Owner", held.owner)
	request.Header.Set("Fence-Revision", strconv.FormatInt(held.revision, 10))
	request.Close = true
	answer, err := http.DefaultClient.Do(request)
	check(err)
	answer.Body.Close()
	return answer
}

func read(jobs chan<- string) {
	file, err := os.Open(os.Getenv("JOBS"))
	check(err)
	for lines := bufio.NewScanner(file); lines.Scan(); {
		jobs <- lines.Text()
	}
	close(jobs)
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

var background = context.Background()
