package main

import (
	"net/http"
	"net/http/httptest"
	"testing"
)

// Of a job and the session's end select took either, and in every other run the job was sent.
func TestNoJobIsBegunWhenTheSessionIsOver(t *testing.T) {
	worker := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		t.Error("a job was sent")
	}))
	defer worker.Close()
	t.Setenv("WORKER", worker.URL)
	lost := make(chan struct{})
	close(lost)
	for i := 0; i < 100 && !t.Failed(); i++ {
		jobs := make(chan string, 1)
		jobs <- "late"
		if work(jobs, tenure{"shard-1", 7}, lost) {
			t.Fatal("it took the end of its session for the end of its jobs")
		}
	}
}
