// A plain client of Go's net/http: sends requests one after another over kept connections, and prints
// how many responses and errors its caller saw. Requests that the transport retries by itself do not show.
//
// usage: go run go-client.go METHOD COUNT URL (a POST has a body that can be resent)
package main

import (
	"bytes"
	"crypto/tls"
	"encoding/json"
	"io"
	"log"
	"net/http"
	"os"
	"strconv"
	"time"
)

func main() {
	method, url := os.Args[1], os.Args[3]
	count, err := strconv.Atoi(os.Args[2])
	if err != nil {
		log.Fatal(err)
	}
	client := &http.Client{Timeout: 20 * time.Second, Transport: &http.Transport{
		TLSClientConfig:   &tls.Config{InsecureSkipVerify: true},
		ForceAttemptHTTP2: true,
	}}
	answers, errors := 0, map[string]int{}
	protocols := map[string]int{}
	for i := 0; i < count; i++ {
		var body io.Reader
		if method == http.MethodPost {
			body = bytes.NewReader([]byte("hello"))
		}
		request, err := http.NewRequest(method, url, body)
		if err != nil {
			log.Fatal(err)
		}
		response, err := client.Do(request)
		if err == nil {
			protocols[response.Proto]++
			_, err = io.Copy(io.Discard, response.Body)
			response.Body.Close()
		}
		if err != nil {
			errors[err.Error()]++
		} else {
			answers++
		}
	}
	shown := 0
	for _, n := range errors {
		shown += n
	}
	json.NewEncoder(os.Stdout).Encode(map[string]any{
		"answers": answers, "shown": shown, "errors": errors, "protocols": protocols,
	})
}
