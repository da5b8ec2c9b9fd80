// Package bench has benchmarks of each step of an event's way, and of listing, in one process:
//
//	go test -run '^$' -bench . -count 6 ./bench | tee new.txt
//	benchstat old.txt new.txt
//
// What they leave out (a kernel, a client, other work on the machine) is measured by mtagbench, in the
// folder below. README.md says what the figures mean and has the accepted ones.
package bench
