// Package bench has benchmarks of each step of an event's way, and of listing, in one process:
//
//	make bench-steps | tee new.txt
//	benchstat old.txt new.txt
//
// What they leave out (a kernel, a client, other work on the machine) is measured by mtagbench, in the
// folder below. Both send the same events, and compare with the same bare server. README.md says what the figures mean
// and has the accepted ones.
package bench
