package local

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dgraph-io/badger/v4"
	"github.com/dgraph-io/badger/v4/options"
	"github.com/prometheus/client_golang/prometheus"
	bolt "go.etcd.io/bbolt"

	"mtagd/store"
	"mtagd/store/local/codec"
	"mtagd/store/local/rank"
)

// soundDirectory makes a directory with control data and events of existing tags, some of them in overflow series. It returns the
// merchants.
func soundDirectory(t *testing.T, dir string) []store.MerchantID {
	t.Helper()
	opened, err := Open(dir, Options{Log: quiet, maxSeries: 3})
	if err != nil {
		t.Fatal(err)
	}
	e := opened.(*engine)
	p, err := e.AddPartner(ctx, "Agency")
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := e.IssueKey(ctx, p.ID, store.KeyOptions{}); err != nil {
		t.Fatal(err)
	}
	var merchants []store.MerchantID
	for i := range 3 {
		m, err := e.AddMerchant(ctx, p.ID, store.NewMerchant{Name: "Shop", Domain: "shop.example.com"})
		if err != nil {
			t.Fatal(err)
		}
		merchants = append(merchants, m.ID)
		client, _, err := e.GenerateTag(ctx, m.ID, store.ClientSide, "")
		if err != nil {
			t.Fatal(err)
		}
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
			if err := e.Record(ctx, marks); err != nil {
				t.Fatal(err)
			}
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
func TestVerifyFinds(t *testing.T) {
	dir := t.TempDir()
	merchants := soundDirectory(t, dir)
	key, err := codec.NewMerchantKey(merchants[1])
	if err != nil {
		t.Fatal(err)
	}
	inControl := func(change func(tx *bolt.Tx) error) func(dir string) error {
		return func(dir string) error { return changeBolt(filepath.Join(dir, "control.db"), change) }
	}
	inIndex := func(change func(tx *bolt.Tx) error) func(dir string) error {
		return func(dir string) error { return changeBolt(filepath.Join(dir, "index.db"), change) }
	}
	inEvents := func(change func(txn *badger.Txn) error) func(dir string) error {
		return func(dir string) error { return changeBadger(filepath.Join(dir, "events"), change) }
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
		"a node is damaged":    {flip("nodes"), store.PartIndex, "node"},
		"a root is damaged":    {flip("roots"), store.PartIndex, string(merchants[1])[:8]},
		"a block is damaged":   {flip("blocks"), store.PartIndex, "segment"},
		"segments are damaged": {flip("segments"), store.PartIndex, "segments"},
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
		"a chunk is missing": {inEvents(func(txn *badger.Txn) error { return txn.Delete(chunkKeys(txn)[5]) }), store.PartEvents, "is missing"},
		"a chunk does not decode": {inEvents(func(txn *badger.Txn) error {
			return txn.Set(chunkKeys(txn)[5], bytes.Repeat([]byte("x"), 400))
		}), store.PartEvents, "cannot be read"},
		"an entry is unknown": {inEvents(func(txn *badger.Txn) error { return txn.Set([]byte("Y"), nil) }), store.PartEvents, "entry 59"},
		"a link is empty": {inEvents(func(txn *badger.Txn) error {
			return txn.Set(append([]byte("L"), make([]byte, 48)...), nil)
		}), store.PartEvents, "entry 4c"},
		"a table is damaged": {func(dir string) error {
			tables, err := filepath.Glob(filepath.Join(dir, "events", "*.sst"))
			if err != nil || len(tables) == 0 {
				return errors.Join(err, errors.New("no tables"))
			}
			return changeFile(tables[0], func(b []byte) { b[len(b)/3] ^= 1 })
		}, store.PartEvents, ".sst"},
		"a value log is damaged":  {func(dir string) error { return damageChunk(dir, `{"n":`) }, store.PartEvents, "chunk"},
		"a value log is missing":  {func(dir string) error { return os.Remove(filepath.Join(dir, "events", "000001.vlog")) }, store.PartEvents, ""},
		"the MANIFEST is missing": {func(dir string) error { return os.Remove(filepath.Join(dir, "events", "MANIFEST")) }, store.PartEvents, "MANIFEST"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := copied(t, dir)
			if err := c.damage(dir); err != nil {
				t.Fatal(err)
			}
			before := filesIn(t, dir)
			found := closedFindings(t, dir)
			if !slices.ContainsFunc(found, func(f store.Finding) bool {
				return f.Part == c.part && strings.Contains(f.Where+" "+f.Problem+fmt.Sprint(f.Merchants), c.says)
			}) {
				t.Errorf("the findings are %v; want one in %s with %q", found, c.part, c.says)
			}
			if len(found) > maxListed+10 {
				t.Errorf("%d findings", len(found))
			}
			for name, b := range filesIn(t, dir) {
				if !bytes.Equal(b, before[name]) {
					t.Errorf("verify has changed %s", name)
				}
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

// changeBadger changes a journal's database in one transaction.
func changeBadger(path string, change func(txn *badger.Txn) error) error {
	db, err := badger.OpenManaged(badger.DefaultOptions(path).WithLogger(nil).WithValueThreshold(300).WithCompression(options.None))
	if err != nil {
		return err
	}
	txn := db.NewTransactionAt(1<<63, true)
	defer txn.Discard()
	return errors.Join(change(txn), txn.CommitAt(db.MaxVersion()+1, nil), db.Close())
}

func chunkKeys(txn *badger.Txn) (keys [][]byte) {
	it := txn.NewIterator(badger.IteratorOptions{Prefix: []byte("A")})
	defer it.Close()
	for it.Rewind(); it.Valid(); it.Next() {
		keys = append(keys, it.Item().KeyCopy(nil))
	}
	return keys
}

// damageChunk flips a bit of the chunk that has this text first.
func damageChunk(dir, text string) error {
	logs, err := filepath.Glob(filepath.Join(dir, "events", "*.vlog"))
	if err != nil {
		return err
	}
	for _, log := range logs {
		damaged := false
		if err := changeFile(log, func(b []byte) {
			if at := bytes.Index(b, []byte(text)); at >= 0 {
				b[at+1] ^= 1
				damaged = true
			}
		}); err != nil || damaged {
			return err
		}
	}
	return errors.New("no such text in the value logs")
}

// removeFromIndex removes n events of a merchant from the index alone.
func removeFromIndex(dir string, id store.MerchantID, n int) error {
	m, err := codec.NewMerchantKey(id)
	if err != nil {
		return err
	}
	x, err := rank.Open(filepath.Join(dir, "index.db"), 0, quiet)
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

// filesIn returns the bytes of all files in a directory, except Badger's locks.
func filesIn(t *testing.T, dir string) map[string][]byte {
	t.Helper()
	files := map[string][]byte{}
	if err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || d.Name() == "LOCK" {
			return err
		}
		files[path], err = os.ReadFile(path)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return files
}

// A damaged chunk costs its own events, and nothing else: all others are listed, with exact totals, also after the index is
// rebuilt. The damage is noted once.
func TestADamagedChunkCostsItsOwnEvents(t *testing.T) {
	dir := t.TempDir()
	e := open(t, dir)
	merchants := []store.MerchantID{store.NewMerchantID(), store.NewMerchantID()}
	for range 5 {
		record(t, e, merchants[0], 300)
		record(t, e, merchants[1], 100)
	}
	recorded := map[store.MerchantID][]store.Event{}
	for _, m := range merchants {
		recorded[m] = everything(t, e, m)[0].Events
	}
	closeEngine(t, e)
	if err := damageChunk(dir, `{"n":`); err != nil {
		t.Fatal(err)
	}
	for _, when := range []string{"when it is found", "after a restart", "after the index is rebuilt"} {
		if when == "after the index is rebuilt" {
			if err := os.Remove(filepath.Join(dir, "index.db")); err != nil {
				t.Fatal(err)
			}
		}
		e := open(t, dir)
		listed := map[store.MerchantID][2]store.Page{}
		for _, m := range merchants {
			listed[m] = everything(t, e, m)
		}
		closeEngine(t, e)
		b, err := os.ReadFile(filepath.Join(dir, "damaged.jsonl"))
		if err != nil {
			t.Fatal(err)
		}
		var n note
		if err := json.Unmarshal(b, &n); err != nil {
			t.Fatalf("%s: %s: %v", when, b, err)
		}
		lost := map[store.EventID]bool{}
		for i := range uint16(256) {
			lost[codec.Position{Seq: n.Chunk, Index: i}.EventID()] = true
		}
		missing := 0
		for m, all := range recorded {
			want := slices.DeleteFunc(slices.Clone(all), func(e store.Event) bool { return lost[e.ID] })
			missing += len(all) - len(want)
			for _, page := range listed[m] {
				if page.Total != len(want) {
					t.Errorf("%s: total %d, want %d", when, page.Total, len(want))
				}
			}
			if !reflect.DeepEqual(listed[m][0].Events, want) {
				t.Errorf("%s: %d other events than all but those of the damaged chunk", when, len(listed[m][0].Events))
			}
		}
		if missing == 0 || n.Events != uint64(missing) || len(n.Merchants) != 1 || n.From.IsZero() || n.To.Before(n.From) {
			t.Errorf("%s: %d events are missing; the note is %s", when, missing, b)
		}
		if found := closedFindings(t, dir); !slices.ContainsFunc(found, func(f store.Finding) bool {
			return f.Part == store.PartEvents && strings.Contains(f.Where, fmt.Sprint(n.Chunk))
		}) {
			t.Errorf("%s: verify finds %v", when, found)
		}
	}
}

// Wrong bits anywhere in the value logs cost at most the chunks that they are in. Everything else is served, with exact
// totals; verify and the metrics say what is lost; and the rest is kept when the index is rebuilt.
func TestWrongBitsCostOnlyTheirChunks(t *testing.T) {
	dir := t.TempDir()
	e := open(t, dir)
	m := store.NewMerchantID()
	for range 12 {
		record(t, e, m, 300)
	}
	recorded := everything(t, e, m)[0].Events
	closeEngine(t, e)
	logs, err := filepath.Glob(filepath.Join(dir, "events", "*.vlog"))
	if err != nil || len(logs) == 0 {
		t.Fatal(logs, err)
	}
	seed := rand.Uint64()
	random := rand.New(rand.NewPCG(seed, 0))
	for round := range 10 {
		dir := copied(t, dir)
		flips := 1 + random.IntN(8)
		for range flips {
			if err := changeFile(filepath.Join(dir, "events", filepath.Base(logs[0])), func(b []byte) {
				used := len(bytes.TrimRight(b, "\x00"))
				b[20+random.IntN(used-20)] ^= 1 << random.IntN(8)
			}); err != nil {
				t.Fatal(err)
			}
		}
		if round%2 == 1 {
			if err := os.Remove(filepath.Join(dir, "index.db")); err != nil {
				t.Fatal(err)
			}
		}
		metrics := prometheus.NewRegistry()
		opened, err := Open(dir, Options{Log: quiet, Metrics: metrics})
		if err != nil {
			t.Fatalf("seed %d, round %d: %v", seed, round, err)
		}
		e := opened.(*engine)
		if round%3 == 0 { // found by verify first
			findings(t, e.Verify)
		}
		listed := everything(t, e, m)
		damaged := map[store.EventID]bool{}
		for seq := range e.damage.notes {
			for i := range uint16(256) {
				damaged[codec.Position{Seq: seq.chunk, Index: i}.EventID()] = true
			}
		}
		want := slices.DeleteFunc(slices.Clone(recorded), func(e store.Event) bool { return damaged[e.ID] })
		for _, page := range listed {
			if page.Total != len(want) {
				t.Errorf("seed %d, round %d: total %d, want %d", seed, round, page.Total, len(want))
			}
		}
		if !reflect.DeepEqual(listed[0].Events, want) {
			t.Errorf("seed %d, round %d: other events", seed, round)
		}
		if n := len(e.damage.notes); n > flips {
			t.Errorf("seed %d, round %d: %d wrong bits cost %d chunks", seed, round, flips, n)
		}
		if n, err := gauge(metrics, "mtagd_damaged_chunks"); err != nil || int(n) != len(e.damage.notes) {
			t.Errorf("seed %d, round %d: the metric is %v, %v, want %d", seed, round, n, err, len(e.damage.notes))
		}
		closeEngine(t, e)
		for _, f := range closedFindings(t, dir) {
			if f.Part == store.PartIndex || f.Part == store.PartEvents && !strings.HasPrefix(f.Where, "chunk") {
				t.Errorf("seed %d, round %d: %v", seed, round, f)
			}
		}
	}
}

// The last chunk may be the damaged one: a listing after a replay does not wait for it.
func TestTheLastChunkMayBeDamaged(t *testing.T) {
	dir := t.TempDir()
	e := open(t, dir)
	m := store.NewMerchantID()
	record(t, e, m, 300)
	lastRaw := []byte(`{"last":"`)
	for range 50 { // more than is kept in tables
		lastRaw = append(lastRaw, store.NewMerchantID()...)
	}
	lastRaw = append(lastRaw, `"}`...)
	if err := e.Record(ctx, []store.Mark{newMark(m, "Last", 1, lastRaw)}); err != nil {
		t.Fatal(err)
	}
	closeEngine(t, e)
	if err := errors.Join(damageChunk(dir, `{"last":`), os.Remove(filepath.Join(dir, "index.db"))); err != nil {
		t.Fatal(err)
	}
	e = open(t, dir)
	defer closeEngine(t, e)
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	if page, err := e.Events(ctx, store.Query{Merchant: m, Limit: 1}); err != nil || page.Total != 300 {
		t.Errorf("total %d, %v, want 300", page.Total, err)
	}
}

// gauge returns the value of a metric.
func gauge(metrics prometheus.Gatherer, name string) (float64, error) {
	families, err := metrics.Gather()
	for _, f := range families {
		if f.GetName() == name {
			return f.Metric[0].Gauge.GetValue(), err
		}
	}
	return 0, errors.Join(err, fmt.Errorf("no metric %s", name))
}
