package local

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	bolt "go.etcd.io/bbolt"

	"mtagd/store"
	"mtagd/store/local/badgerdb"
	"mtagd/store/local/codec"
	"mtagd/store/local/rank"
	"mtagd/store/testenv"
)

// soundDirectory makes a directory with control data and events of existing tags, some of them in overflow series. It returns the
// merchants.
func soundDirectory(t *testing.T, dir string) []store.MerchantID {
	t.Helper()
	opened, err := Open(dir, Options{Log: quiet, MaxSeries: 3})
	testenv.Check(t, err)
	e := opened.(*engine)
	p, err := e.AddPartner(ctx, "Agency")
	testenv.Check(t, err)
	if _, _, err := e.IssueKey(ctx, p.ID, store.KeyOptions{}); err != nil {
		t.Fatal(err)
	}
	var merchants []store.MerchantID
	for i := range 3 {
		m, err := e.AddMerchant(ctx, p.ID, store.NewMerchant{Name: "Shop", Domain: "shop.example.com"})
		testenv.Check(t, err)
		merchants = append(merchants, m.ID)
		client, _, err := e.GenerateTag(ctx, m.ID, store.ClientSide, "")
		testenv.Check(t, err)
		if _, _, err := e.GenerateTag(ctx, m.ID, store.ServerSide, fmt.Sprintf("shop%d.com", i)); err != nil {
			t.Fatal(err)
		}
		for n := range 20 {
			var marks []store.Mark
			for k := range 100 {
				mark := newMark(m.ID, fmt.Sprintf("Name%d", k%7), (n*7919+k*13)%1000*1e6, fmt.Appendf(nil, `{"n":%d,"k":%d}`, n, k))
				mark.Tag, mark.DedupeID = client.ID, fmt.Sprintf("id-%d-%d", n, k)
				mark.Identity.Add(store.Email, fmt.Sprintf("%d@example.com", k))
				marks = append(marks, mark)
			}
			testenv.Check(t, e.Record(ctx, marks))
		}
	}
	if found := findings(t, e.Verify); found != nil {
		t.Errorf("a sound engine has findings: %v", found)
	}
	closeEngine(t, e)
	if found := closedFindings(t, dir); found != nil {
		t.Errorf("a sound directory has findings: %v", found)
	}
	return merchants
}

func findings(t *testing.T, verify store.Verify) (found []store.Finding) {
	t.Helper()
	if _, err := verify(ctx, store.Verification{
		Found: func(f store.Finding) { found = append(found, f) },
		Read:  func(store.Part, uint64, uint64) {},
	}); err != nil {
		t.Errorf("verify: %v", err)
	}
	return found
}

func closedFindings(t *testing.T, dir string) (found []store.Finding) {
	t.Helper()
	if _, err := VerifyClosed(ctx, dir, store.Verification{
		Found: func(f store.Finding) { found = append(found, f) },
		Read:  func(store.Part, uint64, uint64) {},
	}); err != nil {
		t.Errorf("verify: %v", err)
	}
	return found
}

// Only where no server has run yet are there no events to verify.
func TestEventsThatCannotBeLookedAtAreFound(t *testing.T) {
	dir := t.TempDir()
	closeEngine(t, open(t, dir))
	events := filepath.Join(dir, "events")
	testenv.Check(t, errors.Join(os.RemoveAll(events), os.Symlink("events", events)))
	if found := closedFindings(t, dir); !slices.ContainsFunc(found, func(f store.Finding) bool { return f.Part == store.PartEvents }) {
		t.Errorf("a verification finds %+v", found)
	}
}

// Close ends a running verification. Later ones fail.
func TestCloseEndsAVerification(t *testing.T) {
	e := open(t, t.TempDir())
	record(t, e, store.NewMerchantID(), 100)
	ended := endSeen{ctx, make(chan struct{})}
	reading, verified := make(chan struct{}, 100), make(chan error, 1)
	go func() {
		_, err := e.Verify(ended, store.Verification{
			Found: func(store.Finding) {},
			Read: func(store.Part, uint64, uint64) {
				reading <- struct{}{}
				select {
				case <-ended.seen:
				case <-time.After(time.Minute): // then the test fails
				}
			},
		})
		verified <- err
	}()
	<-reading
	closeEngine(t, e)
	if err := <-verified; err == nil {
		t.Error("it ended without an error")
	}
	if _, err := e.Verify(ctx, store.Verification{}); err == nil {
		t.Error("a closed engine is verified")
	}
}

// endSeen is a context that closes seen when a context that was derived from it has ended. That happens in another goroutine, at any
// time after the cause.
type endSeen struct {
	context.Context
	seen chan struct{}
}

func (endSeen) Done() <-chan struct{} { return make(chan struct{}) }

// AfterFunc is called by context.WithCancel, which calls stop when the derived context ends.
func (c endSeen) AfterFunc(func()) (stop func() bool) {
	return sync.OnceValue(func() bool { close(c.seen); return true })
}

// A kill is not damage: neither the directory that it leaves, nor the one that the next start has repaired, has findings.
func TestAKillIsNotDamage(t *testing.T) {
	dir := t.TempDir()
	e := open(t, dir)
	m := store.NewMerchantID()
	record(t, e, m, 1000)
	killed := copied(t, dir)
	record(t, e, m, 100)
	closeEngine(t, e)
	isTag := func(f store.Finding) bool { return f.Part == store.PartTags }
	if found := slices.DeleteFunc(closedFindings(t, killed), isTag); len(found) > 0 {
		t.Errorf("after a kill: %v", found)
	}
	closeEngine(t, open(t, killed))
	if found := slices.DeleteFunc(closedFindings(t, killed), isTag); len(found) > 0 {
		t.Errorf("after the next start: %v", found)
	}
}

// Verify finds each of these faults, and says where it is.
func TestDrillVerifyFinds(t *testing.T) {
	testenv.Drill(t)
	dir := t.TempDir()
	merchants := soundDirectory(t, dir)
	key, err := store.NewMerchantKey(merchants[1])
	testenv.Check(t, err)
	inControl := func(change func(tx *bolt.Tx) error) func(dir string) error {
		return func(dir string) error { return changeBolt(filepath.Join(dir, "control.db"), change) }
	}
	inIndex := func(change func(tx *bolt.Tx) error) func(dir string) error {
		return func(dir string) error { return changeBolt(filepath.Join(dir, "index.db"), change) }
	}
	inEvents := func(e codec.Entry) func(dir string) error {
		return func(dir string) error { return changeBadger(filepath.Join(dir, "events", "keys"), e) }
	}
	first := func(tx *bolt.Tx, bucket string) (*bolt.Bucket, []byte, []byte) {
		b := tx.Bucket([]byte(bucket))
		k, v := b.Cursor().First()
		return b, slices.Clone(k), slices.Clone(v)
	}
	remove := func(bucket string) func(dir string) error {
		return inControl(func(tx *bolt.Tx) error {
			b, k, _ := first(tx, bucket)
			return b.Delete(k)
		})
	}
	flip := func(bucket string) func(dir string) error {
		return inIndex(func(tx *bolt.Tx) error {
			b := tx.Bucket([]byte(bucket))
			k, v := b.Cursor().Seek(key[:])
			v = slices.Clone(v)
			v[len(v)/2] ^= 1
			return b.Put(k, v)
		})
	}
	for name, c := range map[string]struct {
		damage func(dir string) error
		part   store.Part
		says   string
	}{
		"a partner is missing":  {remove("partners"), store.PartControl, "partner"},
		"a merchant is missing": {remove("merchants"), store.PartControl, "merchant"},
		"a tag is missing":      {remove("tags"), store.PartTags, "does not exist"},
		"a record is in another place": {inControl(func(tx *bolt.Tx) error {
			_, k, v := first(tx, "keys")
			return tx.Bucket([]byte("replies")).Put(k, v)
		}), store.PartControl, "replies"},
		"a bucket has a sequence": {inControl(func(tx *bolt.Tx) error { return tx.Bucket([]byte("tags")).SetSequence(7) }), store.PartControl, "tags"},
		"a domain is another tag's": {inControl(func(tx *bolt.Tx) error {
			b, _, v := first(tx, "domains")
			return b.Put([]byte("other.com"), v)
		}), store.PartControl, "other.com"},
		"a record does not decode": {inControl(func(tx *bolt.Tx) error {
			b, k, v := first(tx, "keys")
			return b.Put(k, v[:len(v)-1])
		}), store.PartControl, "keys"},
		"an audit entry has another key": {inControl(func(tx *bolt.Tx) error {
			b, k, v := first(tx, "log")
			k[15] ^= 1
			return b.Put(k, v)
		}), store.PartControl, "log"},
		"a page of control.db is damaged": {func(dir string) error {
			return changeFile(filepath.Join(dir, "control.db"), func(b []byte) {
				for page := 2 * 4096; page < len(b); page += 4096 { // some are of older versions
					if bytes.Contains(b[page:page+4096], []byte(`{"tagId"`)) {
						clear(b[page : page+4096])
					}
				}
			})
		}, store.PartControl, "control.db"},
		"control.db is cut short": {func(dir string) error {
			return os.Truncate(filepath.Join(dir, "control.db"), 5*4096)
		}, store.PartControl, "control.db"},
		"a node is damaged": {flip("nodes"), store.PartIndex, "node"},
		"a root is damaged": {flip("roots"), store.PartIndex, string(merchants[1])[:8]},
		"a node of names is damaged": {inIndex(func(tx *bolt.Tx) error {
			b := tx.Bucket([]byte("nodes"))
			c := b.Cursor()
			for k, v := c.First(); k != nil; k, v = c.Next() {
				if v[0] == 2 { // a leaf
					v = slices.Clone(v)
					v[3] ^= 1
					return b.Put(slices.Clone(k), v)
				}
			}
			return errors.New("there is no run of names")
		}), store.PartIndex, "node"},
		"a node is missing": {inIndex(func(tx *bolt.Tx) error {
			b := tx.Bucket([]byte("nodes"))
			k, _ := b.Cursor().Seek(key[:])
			return b.Delete(k)
		}), store.PartIndex, "node"},
		"a node is an older one": {inIndex(func(tx *bolt.Tx) error { // sealed, but another one
			b := tx.Bucket([]byte("nodes"))
			c := b.Cursor()
			k, _ := c.Seek(key[:])
			k = slices.Clone(k)
			_, v := c.Next()
			return b.Put(k, slices.Clone(v))
		}), store.PartIndex, "node"},
		"index.db is cut short": {func(dir string) error {
			return os.Truncate(filepath.Join(dir, "index.db"), 8*4096)
		}, store.PartIndex, "index.db"},
		"an event is not in the index": {func(dir string) error {
			return removeFromIndex(dir, merchants[0], 1)
		}, store.PartEvents, "not in the index"},
		"the log is missing":  {func(dir string) error { return os.RemoveAll(filepath.Join(dir, "events", "log")) }, store.PartEvents, ""},
		"an entry is unknown": {inEvents(codec.Entry{Key: []byte("Y")}), store.PartEvents, "entry 59"},
		"a link is empty":     {inEvents(codec.Entry{Key: append([]byte("L"), make([]byte, 48)...)}), store.PartEvents, "entry 4c"},
		"a table is damaged": {func(dir string) error {
			tables, err := filepath.Glob(filepath.Join(dir, "events", "keys", "*", "*.sst"))
			if err != nil || len(tables) == 0 {
				return errors.Join(err, errors.New("no tables"))
			}
			return changeFile(tables[0], func(b []byte) { b[len(b)/3] ^= 1 })
		}, store.PartEvents, ".sst"},
		"a record of the log is damaged": {func(dir string) error { return damageChunk(dir, `{"n":`) }, store.PartEvents, "chunk"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := copied(t, dir)
			testenv.Check(t, c.damage(dir))
			before := fileSums(t, dir)
			found := closedFindings(t, dir)
			if !slices.ContainsFunc(found, func(f store.Finding) bool {
				return f.Part == c.part && strings.Contains(f.Where+" "+f.Problem+fmt.Sprint(f.Merchants), c.says)
			}) {
				t.Errorf("the findings are %v; want one in %s with %q", found, c.part, c.says)
			}
			if len(found) > maxListed+10 {
				t.Errorf("%d findings", len(found))
			}
			if after := fileSums(t, dir); !maps.Equal(before, after) {
				t.Errorf("verify has changed files: %v, before %v", after, before)
			}
		})
	}
}

// changeFile changes the bytes of a file.
func changeFile(path string, change func(b []byte)) error {
	b, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	change(b)
	return os.WriteFile(path, b, 0o600)
}

// changeBadger writes entries to a database.
func changeBadger(path string, entries ...codec.Entry) error {
	db, err := badgerdb.Open(path, quiet)
	if err != nil {
		return err
	}
	for i := range entries {
		entries[i].Version = db.MaxVersion() + 1
	}
	return errors.Join(db.Put(entries...), db.Flush(), db.Close())
}

// removeKeys removes keys from a database.
func removeKeys(path string, keys [][]byte) error {
	var entries []codec.Entry
	for _, k := range keys {
		entries = append(entries, codec.Entry{Key: k, Deleted: true})
	}
	return changeBadger(path, entries...)
}

// keysOfBadger returns the keys of a database that begin with a prefix.
func keysOfBadger(path string, prefix []byte) (keys [][]byte, err error) {
	db, err := badgerdb.Open(path, quiet)
	if err != nil {
		return nil, err
	}
	err = db.View(func(txn *badgerdb.Txn) error {
		it := txn.NewIterator(badgerdb.IteratorOptions{Prefix: prefix})
		for it.Rewind(); it.Valid(); it.Next() {
			keys = append(keys, bytes.Clone(it.Entry().Key))
		}
		return nil
	})
	return keys, errors.Join(err, db.Close())
}

// removeFromIndex removes n events of a merchant from the index alone.
func removeFromIndex(dir string, id store.MerchantID, n int) error {
	m, err := store.NewMerchantKey(id)
	if err != nil {
		return err
	}
	x, err := rank.Open(filepath.Join(dir, "index.db"), quiet)
	if err != nil {
		return err
	}
	x.Start()
	var keys []rank.Key
	err = x.ScanEvents(ctx, m, func(k rank.Key, _ string) { keys = append(keys, k) })
	if err == nil {
		_, err = x.Remove(ctx, m, keys[:n])
	}
	return errors.Join(err, x.Close())
}

// Events that the index has under another name are not lost: the index is rebuilt.
func TestAnotherNameInTheIndexIsNoLoss(t *testing.T) {
	dir, m := t.TempDir(), store.NewMerchantID()
	for _, most := range []int{3, 0} {
		opened, err := Open(dir, Options{Log: quiet, MaxSeries: most})
		testenv.Check(t, err)
		e := opened.(*engine)
		record(t, e, m, 100)
		archiveAll(t, e)
		if _, err := e.Verify(ctx, store.Verification{Found: func(store.Finding) {}, Read: func(store.Part, uint64, uint64) {}}); err != nil {
			t.Fatal(err)
		}
		if most == 0 {
			until(t, "the index is rebuilt", func() bool { e.index.mu.Lock(); defer e.index.mu.Unlock(); return e.index.rebuilt > 0 })
			findNothing(t, e)
		}
		if len(e.damage.notes) > 0 {
			t.Errorf("events are noted as lost: %v", e.damage.notes)
		}
		closeEngine(t, e)
	}
}

// When more events may differ than are kept in memory, none is said to be missing in the index that may be in it.
func TestManyEventsThatMayDiffer(t *testing.T) {
	defer func(before int) { maxLocated = before }(maxLocated)
	maxLocated = 3
	m, found := store.MerchantKey{1}, 0
	v := verifier{Verification: store.Verification{Found: func(store.Finding) { found++ }}, buckets: make([]eventSum, buckets)}
	c := comparison{verifier: &v, merchants: map[store.MerchantKey]*merchantSums{m: {}}, events: map[locatedEvent]bool{}, chunks: map[uint64]*chunkDifference{}}
	for i := range v.buckets {
		v.buckets[i].n = 1
	}
	for _, indexed := range []bool{true, false} {
		for i := range 10 {
			c.take(locatedEvent{m: m, key: rank.Key{Position: store.Position{Seq: 1, Index: uint16(i)}}}, indexed)
		}
	}
	c.group()
	if err := c.report(); err != nil || found > 0 {
		t.Errorf("%d findings, %v", found, err)
	}
}
