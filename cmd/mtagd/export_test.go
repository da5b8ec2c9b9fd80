package main

import (
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"mtagd/cmd/mtagd/operator"
)

// An export fails unless the server ends it with a trailer, however much of it has arrived.
func TestAnExportThatIsCutOff(t *testing.T) {
	data := t.TempDir()
	socket, err := operator.Listen(data)
	if err != nil {
		t.Fatal(err)
	}
	var how atomic.Pointer[func(http.ResponseWriter)]
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		io.WriteString(w, "{}\n")
		http.NewResponseController(w).Flush()
		(*how.Load())(w)
	})}
	go server.Serve(socket)
	defer server.Close()
	for what, cut := range map[string]func(http.ResponseWriter){
		"aborted":           func(http.ResponseWriter) { panic(http.ErrAbortHandler) },
		"without a trailer": func(http.ResponseWriter) {},
		"failed":            func(w http.ResponseWriter) { w.Header().Set(http.TrailerPrefix+failureTrailer, "damage") },
		"whole":             func(w http.ResponseWriter) { w.Header().Set(http.TrailerPrefix+eventsTrailer, "1") },
	} {
		how.Store(&cut)
		var got strings.Builder
		n, err := exportFromServer(t.Context(), data, exportRequest{}, &got)
		if (err == nil) != (what == "whole") || err == nil && n != 1 || got.String() != "{}\n" {
			t.Errorf("%s: %d events, %q, %v", what, n, got.String(), err)
		}
	}
}
