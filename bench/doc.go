// Package bench has the benchmarks of single steps, each in one process:
//
//	make bench-steps > new.txt
//	go run golang.org/x/perf/cmd/benchstat@latest old.txt new.txt
//
// The program in mtagbench measures the whole service, over loopback, with the client in another process. Both use the
// files here:
//
//	events.go  the events that every benchmark sends
//	bare.go    the server that does nothing
//	synced.go  the server that syncs bodies to a file, with which mtagd is compared
//
// README.md explains the measurements and has the accepted results.
package bench
