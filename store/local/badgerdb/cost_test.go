package badgerdb

import (
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"os"
	"runtime/debug"
	"strconv"
	"strings"
	"testing"
	"time"
)

func written() (n int) {
	b, _ := os.ReadFile("/proc/self/io")
	for line := range strings.Lines(string(b)) {
		if v, ok := strings.CutPrefix(line, "write_bytes: "); ok {
			w, _ := strconv.Atoi(strings.TrimSpace(v))
			n += w
		}
		if v, ok := strings.CutPrefix(line, "cancelled_write_bytes: "); ok {
			w, _ := strconv.Atoi(strings.TrimSpace(v))
			n -= w
		}
	}
	return n
}

// peak samples the memory without maps while f runs, in MB.
func peak(f func()) (mb float64) {
	done, stopped := make(chan bool), make(chan bool)
	go func() {
		defer close(stopped)
		for {
			b, _ := os.ReadFile("/proc/self/status")
			for line := range strings.Lines(string(b)) {
				if v, ok := strings.CutPrefix(line, "RssAnon:"); ok {
					n, _ := strconv.Atoi(strings.TrimSuffix(strings.TrimSpace(v), " kB"))
					mb = max(mb, float64(n)/1e3)
				}
			}
			select {
			case <-done:
				return
			case <-time.After(5 * time.Millisecond):
			}
		}
	}()
	f()
	close(done)
	<-stopped
	return mb
}

// BenchmarkCheckpoint writes checkpoints of sorted entries like archive blocks, and flushes each.
func BenchmarkCheckpoint(b *testing.B) {
	for _, mb := range []int{4, 16, 32} {
		b.Run(fmt.Sprintf("%dMB", mb), func(b *testing.B) {
			d, err := Open(b.TempDir(), quiet)
			if err != nil {
				b.Fatal(err)
			}
			defer d.Close()
			value := make([]byte, 4500)
			rand.Read(value)
			version := uint64(0)
			before := written()
			debug.FreeOSMemory()
			used := peak(func() {
				for b.Loop() {
					for left := mb << 20; left > 0; {
						version++
						if err := commit(d, version, func(txn *batch) error {
							for n := 0; n < 200<<10; n += len(value) {
								key := make([]byte, 40)
								rand.Read(key)
								if err := txn.Set(key, value); err != nil {
									return err
								}
								left -= len(value)
							}
							return nil
						}); err != nil {
							b.Fatal(err)
						}
					}
					if err := d.Flush(); err != nil {
						b.Fatal(err)
					}
				}
			})
			b.ReportMetric(used, "anonMB")
			b.ReportMetric(float64(written()-before)/float64(b.N)/float64(mb<<20), "written/byte")
			start := time.Now()
			size := d.TableBytes()
			debug.FreeOSMemory()
			b.ReportMetric(peak(func() { check(b, d.CompactAndWait(ctx, func() {})) }), "compact-anonMB")
			b.ReportMetric(float64(size)/1e6/time.Since(start).Seconds(), "compactMB/s")
		})
	}
}

// BenchmarkGet reads links from a database with a few new tables.
func BenchmarkGet(b *testing.B) {
	d, err := Open(b.TempDir(), quiet)
	if err != nil {
		b.Fatal(err)
	}
	defer d.Close()
	key := func(i int) []byte {
		k := make([]byte, 49)
		binary.BigEndian.PutUint64(k, uint64(i)*0x9e3779b97f4a7c15)
		return k
	}
	for v := range 200 {
		if err := commit(d, uint64(v+1), func(txn *batch) error {
			for i := range 2000 {
				if err := txn.Set(key(v*2000+i), make([]byte, 30)); err != nil {
					return err
				}
			}
			return nil
		}); err != nil {
			b.Fatal(err)
		}
		if v%20 == 19 {
			if err := d.Flush(); err != nil {
				b.Fatal(err)
			}
		}
		if v == 99 {
			if err := d.CompactAndWait(ctx, func() {}); err != nil {
				b.Fatal(err)
			}
		}
	}
	run := func(name string, get func(i int) error) {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				if err := get(i); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
	_ = d.View(func(txn *Txn) error {
		run("checked", func(i int) error { _, _, err := txn.Get(key(i * 7919 % 400000)); return err })
		run("checked-seek", func(i int) error {
			it := txn.NewIterator(IteratorOptions{})
			it.Seek(key(i * 7919 % 400000))
			return nil
		})
		run("checked-scan1000", func(i int) error {
			it := txn.NewIterator(IteratorOptions{})
			it.Seek(key(i * 7919 % 400000))
			for range 1000 {
				if it.Valid() {
					it.Next()
				}
			}
			return nil
		})
		return nil
	})
}
