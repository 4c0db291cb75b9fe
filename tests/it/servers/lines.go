// Streams of JSON lines from Go's net/http. On SIGTERM the server shuts down: it waits for its streams to finish for at
// most the time in the first argument, and then exits with the remaining ones still open.
//
// The file JOURNAL gets a JSON line at the end of each stream, with the fields of the sample server's log.
package main

import (
	"context"
	"fmt"
	"math"
	"math/rand"
	"net/http"
	"os"
	"os/signal"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

type stream struct {
	id   string
	sent atomic.Int64
}

var (
	mutex   sync.Mutex
	open    = map[*stream]bool{}
	journal *os.File
)

func record(s *stream, end string) {
	if open[s] {
		delete(open, s)
		line := `{"event": "stream_ended", "id": %q, "events": %d, "end": %q, "ended_ns": %d}` + "\n"
		fmt.Fprintf(journal, line, s.id, s.sent.Load(), end, time.Now().UnixNano())
	}
}

func serve(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == "/" {
		fmt.Fprintln(w, "ready")
		return
	}
	s := &stream{id: r.Header.Get("rolldrop-id")}
	mutex.Lock()
	open[s] = true
	mutex.Unlock()
	w.Header().Set("content-type", "application/x-ndjson")
	w.Header().Set("x-pod", os.Getenv("POD_NAME"))
	end := time.Now().Add(time.Duration(math.Min(rand.ExpFloat64()*1.5, 6) * float64(time.Second)))
	for time.Now().Before(end) && r.Context().Err() == nil {
		fmt.Fprintf(w, "{\"response\": \"%d\", \"done\": false}\n", s.sent.Add(1))
		w.(http.Flusher).Flush()
		time.Sleep(50 * time.Millisecond)
	}
	mutex.Lock()
	defer mutex.Unlock()
	if r.Context().Err() != nil {
		record(s, "client_gone")
		return
	}
	fmt.Fprintln(w, `{"response": "", "done": true}`)
	w.(http.Flusher).Flush()
	record(s, "complete")
}

func main() {
	patience, err := time.ParseDuration(os.Args[1])
	if err != nil {
		panic(err)
	}
	journal, err = os.OpenFile(os.Getenv("JOURNAL"), os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o644)
	if err != nil {
		panic(err)
	}
	server := &http.Server{Addr: ":8080", Handler: http.HandlerFunc(serve)}
	go server.ListenAndServe()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	<-ctx.Done()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if server.Shutdown(ctx) == nil {
		return
	}
	// Holds the lock to the end so that no stream is completed after it has been recorded.
	mutex.Lock()
	for s := range open {
		record(s, "cut_after_timeout")
	}
}
