package main

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"mtagd/cmd/mtagd/operator"
)

// An export of a server that ends before its trailer is no whole file, whatever has come of it.
func TestAnExportThatIsCutOff(t *testing.T) {
	data := t.TempDir()
	socket, err := operator.Listen(data)
	if err != nil {
		t.Fatal(err)
	}
	cut := func(http.ResponseWriter) {}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		io.WriteString(w, "{}\n")
		http.NewResponseController(w).Flush()
		cut(w)
	})}
	go server.Serve(socket)
	defer server.Close()
	for what, how := range map[string]func(http.ResponseWriter){
		"aborted":           func(http.ResponseWriter) { panic(http.ErrAbortHandler) },
		"without a trailer": func(http.ResponseWriter) {},
		"failed":            func(w http.ResponseWriter) { w.Header().Set(http.TrailerPrefix+failureTrailer, "damage") },
		"whole":             func(w http.ResponseWriter) { w.Header().Set(http.TrailerPrefix+eventsTrailer, "1") },
	} {
		cut = how
		var got strings.Builder
		n, err := exportFromServer(t.Context(), data, exportRequest{}, &got)
		if (err == nil) != (what == "whole") || err == nil && n != 1 || got.String() != "{}\n" {
			t.Errorf("%s: %d events, %q, %v", what, n, got.String(), err)
		}
	}
}
