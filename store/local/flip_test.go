package local

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"mtagd/store"
	"mtagd/store/testenv"
)

var flipFiles = flag.String("flipfiles", "", "only files whose path contains this get wrong bits")

// flipOracle is what a data directory must answer.
type flipOracle struct {
	merchants []store.MerchantID
	pages     map[store.MerchantID][]store.Page // of flipQueries
	control   []string
}

// flipQueries select all events of a merchant in the ways in which the index is read: by its tree of times, and by its runs of names.
func flipQueries(m store.MerchantID) []store.Query {
	return []store.Query{
		{Merchant: m, Limit: 1_000_000},
		{Merchant: m, SortBy: store.ByName, Limit: 1_000_000},
		{Merchant: m, Names: []string{"Name3", "Name5"}, Limit: 1_000_000},
	}
}

// newFlipOracle makes a data directory with control data and events, as a kill leaves it. Some events are in the archive, and
// some of the others are not in the stored index yet.
func newFlipOracle(t *testing.T) (dir string, o flipOracle) {
	t.Helper()
	live := t.TempDir()
	o = flipOracle{merchants: soundDirectory(t, live), pages: map[store.MerchantID][]store.Page{}}
	opened, err := Open(live, Options{Log: quiet, MaxSeries: 3})
	testenv.Check(t, err)
	e := opened.(*engine)
	defer closeEngine(t, e)
	for i, m := range o.merchants {
		record(t, e, m, 50*(i+1))
	}
	archiveAll(t, e)
	for i, m := range o.merchants {
		record(t, e, m, 50*(i+1))
	}
	for _, m := range o.merchants {
		for _, q := range flipQueries(m) {
			page, err := e.Events(ctx, q)
			testenv.Check(t, err)
			o.pages[m] = append(o.pages[m], page)
		}
	}
	if o.control, err = controlAnswers(e); err != nil {
		t.Fatal(err)
	}
	return copied(t, live), o
}

// filesBelow returns the paths of the files below a directory that have content, except of the spare file, in their order.
func filesBelow(t *testing.T, dir string) (paths []string) {
	t.Helper()
	for path, size := range sizes(t, dir) {
		if size > 0 && filepath.Base(path) != "spare" {
			paths = append(paths, path)
		}
	}
	slices.Sort(paths)
	return paths
}

// controlAnswers returns what the control data answers to each of its queries.
func controlAnswers(e *engine) (answers []string, err error) {
	add := func(v any, err2 error) {
		answers = append(answers, fmt.Sprintf("%+v", v))
		err = errors.Join(err, err2)
	}
	partners, err := e.Partners(ctx)
	add(partners, err)
	for _, p := range partners {
		keys, err := e.Keys(ctx, p.ID)
		add(keys, err)
		merchants, n, err := e.Merchants(ctx, store.MerchantQuery{Partner: p.ID, Limit: 100})
		add(merchants, err)
		add(n, nil)
		for _, m := range merchants {
			for _, t := range m.Tags {
				tag, err := e.Tag(ctx, t.ID)
				add(tag, err)
				listed, ok := e.Directory().Tag(t.ID)
				add(listed, nil)
				add(ok, nil)
			}
		}
	}
	claims, err := e.Claims(ctx, "")
	add(claims, err)
	audit, err := e.Audit(ctx, store.AuditQuery{Limit: 1000})
	add(audit, err)
	return answers, err
}

// feedOf reads the feed of a merchant to its end.
func feedOf(e *engine, m store.MerchantID) (events []store.Event, err error) {
	for q := (store.FeedQuery{Merchants: []store.MerchantID{m}}); ; {
		end, err := e.Feed(ctx, q, func(r *store.Received) bool {
			event := r.Event
			event.Raw = slices.Clone(event.Raw)
			events = append(events, event)
			return true
		})
		if err != nil || !end.More {
			return events, err
		}
		q.After = end.Cursor
	}
}

// check opens a damaged directory and compares all its answers. wrong are the answers that differ without an error and without noted
// damage. failed are the queries that gave an error. opened is called between the start and the queries.
func (o *flipOracle) check(dir string, opened func()) (wrong []string, failed []error, refused error) {
	engineOf, err := Open(dir, Options{Log: quiet, MaxSeries: 3})
	if err != nil {
		return nil, nil, err
	}
	e := engineOf.(*engine)
	opened()
	defer func() {
		if err := e.Close(); err != nil {
			failed = append(failed, fmt.Errorf("close: %w", err))
		}
	}()
	guarded := func(what string, ask func() error) {
		defer func() {
			if p := recover(); p != nil { // the server recovers from a panic of a request
				failed = append(failed, fmt.Errorf("%s: panic: %.100v", what, p))
			}
		}()
		if err := ask(); err != nil {
			failed = append(failed, fmt.Errorf("%s: %w", what, err))
		}
	}
	for _, m := range o.merchants {
		for i, q := range flipQueries(m) {
			guarded("events", func() error {
				page, err := e.Events(ctx, q)
				if err == nil && !reflect.DeepEqual(page, e.without(o.pages[m][i], m, o.pages[m][0].Events)) {
					wrong = append(wrong, fmt.Sprintf("query %d: %d events, want %d", i, page.Total, o.pages[m][i].Total))
				}
				return err
			})
		}
		guarded("feed", func() error {
			events, err := feedOf(e, m)
			want := e.without(o.pages[m][0], m, o.pages[m][0].Events).Events
			slices.SortFunc(want, func(a, b store.Event) int { return strings.Compare(string(a.ID), string(b.ID)) })
			if err == nil && !reflect.DeepEqual(events, want) {
				wrong = append(wrong, fmt.Sprintf("the feed has %d events, want %d", len(events), len(want)))
			}
			return err
		})
		for k := range 100 {
			guarded("resolve", func() error {
				id := store.Identity{}
				id.Add(store.Email, fmt.Sprintf("%d@example.com", k))
				muid, err := e.Resolve(ctx, m, id)
				if err == nil && muid != "u-1" {
					wrong = append(wrong, fmt.Sprintf("an email is linked to %q", muid))
				}
				return err
			})
		}
		guarded("record", func() error {
			marks := []store.Mark{newMark(m, "Name5", 1, []byte("{}"))}
			marks[0].DedupeID = "id-7-5"
			err := e.Record(ctx, marks)
			if err == nil && marks[0].Outcome != store.Duplicate {
				wrong = append(wrong, "an event_id is not remembered")
			}
			return err
		})
	}
	guarded("control data", func() error {
		answers, err := controlAnswers(e)
		if err == nil && !slices.Equal(answers, o.control) {
			wrong = append(wrong, "other control data")
		}
		return err
	})
	return wrong, failed, nil
}

// without returns a page of a merchant without the events of chunks and blocks that the engine has noted as damaged. The page
// has all events of the merchant, or those of two names.
func (e *engine) without(page store.Page, m store.MerchantID, all []store.Event) store.Page {
	damaged := map[store.EventID]bool{}
	for key, note := range e.damage.notes {
		merchant, last, isBlock := strings.Cut(key.archived, " ")
		switch {
		case !isBlock:
			for i := range uint16(256) {
				damaged[store.Position{Seq: key.chunk, Index: i}.EventID()] = true
			}
		case merchant == string(m): // the last ones up to the block's end
			var ids []store.EventID
			for _, event := range all {
				if event.ID <= store.EventID(last) {
					ids = append(ids, event.ID)
				}
			}
			slices.Sort(ids)
			for _, id := range ids[len(ids)-int(note.Events):] {
				damaged[id] = true
			}
		}
	}
	events := slices.DeleteFunc(slices.Clone(page.Events), func(e store.Event) bool { return damaged[e.ID] })
	page.Total -= len(page.Events) - len(events)
	page.Events = events
	return page
}

// A wrong bit in any file of a data directory is corrected, has no effect, or costs what it is in. No answer is wrong without
// an error, the process goes on, and the service starts.
func TestDrillAWrongBitInAnyFileIsNeverServed(t *testing.T) {
	testenv.Drill(t)
	killed, o := newFlipOracle(t)
	if wrong, failed, refused := o.check(copied(t, killed), func() {}); wrong != nil || failed != nil || refused != nil {
		t.Fatalf("without damage: %v, %v, %v", wrong, failed, refused)
	}
	files := slices.DeleteFunc(filesBelow(t, killed), func(path string) bool {
		return !strings.Contains(path, *flipFiles) || strings.HasSuffix(path, "control.db") && *flipFiles == ""
	})
	random := testenv.Random(t)
	random.Shuffle(len(files), func(i, j int) { files[i], files[j] = files[j], files[i] })
	type result struct{ fine, failed, refused, wrong int }
	results := map[string]*result{}
	for i := range testenv.Rounds(10) {
		if endsSoon(t) {
			break
		}
		path, err := filepath.Rel(killed, files[i%len(files)])
		testenv.Check(t, err)
		dir := filepath.Join(t.TempDir(), "data")
		if err := os.CopyFS(dir, os.DirFS(killed)); err != nil && !errors.Is(err, fs.ErrExist) {
			t.Fatal(err)
		}
		at, bit := 0, random.IntN(8)
		running := random.IntN(3) == 0
		flip := func() {
			f, err := os.OpenFile(filepath.Join(dir, path), os.O_RDWR, 0)
			if errors.Is(err, fs.ErrNotExist) { // the start has removed it
				return
			}
			testenv.Check(t, err)
			b, err := io.ReadAll(f)
			testenv.Check(t, err)
			if len(b) > 0 {
				at = min(random.IntN(1+len(bytes.TrimRight(b, "\x00"))), len(b)-1) // files of the log end with zeros
				_, err = f.WriteAt([]byte{b[at] ^ 1<<bit}, int64(at))              // in place: the file may be mapped
			}
			testenv.Check(t, errors.Join(err, f.Close()))
		}
		var wrong []string
		var failed []error
		var refused error
		if running {
			wrong, failed, refused = o.check(dir, flip)
			where := fmt.Sprintf("bit %d of byte %d of %s while it runs", bit, at, path)
			if wrong != nil || refused != nil {
				t.Errorf("%s: %v, %v", where, wrong, refused)
			}
			if len(failed) > 0 {
				t.Logf("%s: %d queries failed, the first: %v", where, len(failed), failed[0])
			}
		} else {
			flip()
		}
		where := fmt.Sprintf("bit %d of byte %d of %s", bit, at, path)
		wrong, failed, refused = o.check(dir, func() {})
		kind := filepath.Ext(path)
		if kind == ".db" || kind == "" {
			kind = filepath.Base(path)
		}
		r := results[kind]
		if r == nil {
			r = &result{}
			results[kind] = r
		}
		switch {
		case wrong != nil:
			r.wrong++
			t.Errorf("%s: %v", where, wrong)
		case refused != nil:
			r.refused++
			t.Errorf("%s: the start is refused: %v", where, refused)
		case failed != nil:
			r.failed++
			t.Logf("%s: %d queries failed, the first: %v", where, len(failed), failed[0])
		default:
			r.fine++
		}
		testenv.Check(t, os.RemoveAll(dir))
	}
	for kind, r := range results {
		t.Logf("%-12s %d with everything, %d with errors, %d refused, %d wrong", kind, r.fine, r.failed, r.refused, r.wrong)
	}
}
