package journal

import (
	"encoding/binary"
	"maps"
	"math/rand/v2"
	"testing"

	"mtagd/store/testenv"
)

// What is not flushed has the newest entry of each key, for others without what a transaction has written so far. It grows,
// transactions fail, flushes drop what they have written, also during a transaction.
func TestDrillUnflushedEntries(t *testing.T) {
	testenv.Drill(t)
	type value struct {
		value   string
		deleted bool
	}
	var u unflushed
	random := rand.New(rand.NewPCG(1, 2))
	committed := map[string]value{} // what is in memory or was flushed
	flushed := map[string]value{}
	check := func(key string, last int, want map[string]value) {
		t.Helper()
		w, found := want[key]
		if number := u.get([]byte(key), last); number > 0 {
			k, v, deleted := u.at(number)
			if !found || string(k) != key || string(v) != w.value || deleted != w.deleted {
				t.Fatalf("the key %x has %x, deleted: %v; want %+v, %v", key, v, deleted, w, found)
			}
		} else if found && flushed[key] != w {
			t.Fatalf("the key %x is missing", key)
		}
	}
	drop := func() {
		for n := range u.flushing {
			key, v, deleted := u.at(n + 1)
			flushed[string(key)] = value{string(v), deleted}
		}
		u.drop()
	}
	const keys = 300_000
	grown := false
	for round := range 200 {
		written := map[string]value{}
		for range random.IntN(4000) {
			n := random.Uint64N(keys)
			if n%2 == 0 {
				n %= 1000 // these change often
			}
			key := string(binary.BigEndian.AppendUint64(nil, n))
			v := value{string(binary.BigEndian.AppendUint32(nil, random.Uint32())[random.IntN(5):]), random.IntN(4) == 0}
			u.set([]byte(key), []byte(v.value), v.deleted)
			written[key] = v
			if random.IntN(10_000) == 0 {
				drop()
			}
		}
		for key, v := range written {
			check(key, u.len(), map[string]value{key: v})
			check(key, u.onDisk, committed)
		}
		if random.IntN(3) == 0 {
			u.cut()
		} else {
			maps.Copy(committed, written)
		}
		u.onDisk = u.len()
		grown = grown || u.len() > 2*flushEntries
		if round > 165 && random.IntN(4) == 0 {
			u.flushing = u.onDisk
		}
		check(string(binary.BigEndian.AppendUint64(nil, random.Uint64N(keys))), u.onDisk, committed)
	}
	if !grown {
		t.Error("there were never many entries")
	}
	for key := range committed {
		check(key, u.onDisk, committed)
	}
	u.flushing = u.onDisk
	drop()
	if u.len() != 0 || usedBuckets(&u) != 0 || len(flushed) != len(committed) || !maps.Equal(flushed, committed) {
		t.Errorf("%d entries are left, in %d buckets; %d keys were flushed instead of %d, or other values", u.len(), usedBuckets(&u), len(flushed), len(committed))
	}
}

// Transactions that fail leave nothing: nothing is flushed while a disk fails.
func TestFailedTransactionsLeaveNoEntries(t *testing.T) {
	var u unflushed
	u.set([]byte("on disk"), nil, false)
	u.onDisk = u.len()
	for n := range 1000 {
		u.set(binary.BigEndian.AppendUint64(nil, uint64(n)), nil, false)
		u.set([]byte("on disk"), nil, true)
		u.cut()
	}
	if u.len() != 1 || usedBuckets(&u) != 1 || u.get([]byte("on disk"), u.len()) != 1 {
		t.Errorf("%d entries are left, in %d buckets, want 1", u.len(), usedBuckets(&u))
	}
}

func usedBuckets(u *unflushed) (n int) {
	for _, number := range u.newest {
		if number > 0 {
			n++
		}
	}
	return n
}
