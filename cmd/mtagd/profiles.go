package main

import (
	"fmt"
	"io"
	"net/http"
	"runtime/pprof"
	"runtime/trace"
	"strconv"
	"time"
)

const longestProfile = 10 * time.Minute

// serveProfile is /debug/pprof/NAME, for go tool pprof and go tool trace. The package net/http/pprof, which can also compare two
// profiles, would make the program larger by 0.3 MB.
func serveProfile(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	number := func(name string, missing int) int {
		n, err := strconv.Atoi(query.Get(name))
		if err != nil {
			return missing
		}
		return n
	}
	// record records for some seconds.
	record := func(start func(io.Writer) error, stop func(), usual int) {
		w.Header().Set("Content-Type", "application/octet-stream")
		if err := start(w); err != nil {
			http.Error(w, err.Error(), http.StatusConflict) // another one is being recorded
			return
		}
		defer stop()
		select {
		case <-time.After(min(time.Duration(number("seconds", usual))*time.Second, longestProfile)):
		case <-r.Context().Done():
		}
	}
	switch name := r.PathValue("name"); name {
	case "":
		fmt.Fprintln(w, "profile?seconds=30\ntrace?seconds=1")
		for _, p := range pprof.Profiles() {
			fmt.Fprintf(w, "%s?debug=1\t%d\n", p.Name(), p.Count())
		}
	case "profile":
		record(pprof.StartCPUProfile, pprof.StopCPUProfile, 30)
	case "trace":
		record(trace.Start, trace.Stop, 1)
	default:
		p := pprof.Lookup(name)
		if p == nil {
			http.NotFound(w, r)
			return
		}
		debug := number("debug", 0)
		if debug == 0 {
			w.Header().Set("Content-Type", "application/octet-stream")
		}
		_ = p.WriteTo(w, debug) // fails only if the client has gone
	}
}
