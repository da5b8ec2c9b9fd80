package local

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"mtagd/store"
	"mtagd/store/local/codec"
	"mtagd/store/local/durable"
	"mtagd/store/local/journal"
	"mtagd/store/migrate"
)

// movedFile is in a data directory whose data has moved to another store. Then the directory cannot be opened.
const movedFile = "moved.json"

// Moved says where the data of a directory has moved.
type Moved struct {
	migrate.Place
	At time.Time `json:"at"`
}

// MovedTo returns where the data of a directory has moved; false when it has not.
func MovedTo(dir string) (m Moved, moved bool, err error) {
	text, err := os.ReadFile(filepath.Join(dir, movedFile))
	if errors.Is(err, fs.ErrNotExist) {
		return m, false, nil
	}
	if err != nil {
		return m, false, err
	}
	if err := json.Unmarshal(text, &m); err != nil {
		return m, false, fmt.Errorf("%s cannot be read: %w. It says to which database the data has moved: start with --store and that one's address. "+
			"To go on here all the same, without what was received since then, remove the file", filepath.Join(dir, movedFile), err)
	}
	return m, true, nil
}

// checkMoved refuses a directory whose data has moved.
func checkMoved(dir string) error {
	m, moved, err := MovedTo(dir)
	if err != nil || !moved {
		return err
	}
	return fmt.Errorf("its data has moved to %s on %s, and is not kept up to date here. Start with --store and the address of that database. "+
		"To go on here all the same, without what was received since then, remove %s", m.Name, store.FormatTime(m.At), filepath.Join(dir, movedFile))
}

// source implements migrate.Live.
type source struct {
	*reader
	remover *remover
}

// MigrateFrom returns an open engine as the source of a migration.
func MigrateFrom(opened store.Engine) migrate.Live { return opened.(*engine).source() }

func (e *engine) source() source { return source{e.reader, e.remover} }

// errMoving is for what is refused while the data moves, or after it has moved.
var errMoving = store.Unavailable("the data moves to another store")

// Hold implements migrate.Live. While expired events are half removed, archive and index differ.
func (s source) Hold(ctx context.Context) (release func(), err error) {
	s.remover.busy.Lock() // waits for a running task
	for merchant, before := range s.remover.expiring {
		if _, err := s.remover.ExpireOf(ctx, merchant, before); err != nil {
			s.remover.busy.Unlock()
			return nil, err
		}
	}
	return s.remover.busy.Unlock, nil
}

// movePortion is how many archived events are read at once.
const movePortion = 4 * maxPortion

// Events implements migrate.Data. It reads as Feed does, but all events of all merchants.
func (s source) Events(ctx context.Context, after, upTo uint64, use func(*migrate.Event) error) error {
	ctx, done, err := s.beginReading(ctx)
	if err != nil {
		return err
	}
	defer done()
	var failed error
	end := store.EndOf(min(upTo, s.watchers.last.Load()))
	f := newFeed(store.FeedQuery{Merchants: s.control.MerchantIDs()}, store.EndOf(after), end, keptForEver)
	f.use = func(e *journal.Event, _ store.MerchantID) bool {
		tag, name := codec.SplitSeries(e.Series)
		failed = use(&migrate.Event{Merchant: e.Merchant, At: e.Position, Time: e.Time, Tag: f.text(tag), Name: f.text(name), Bot: codec.IsBot(e.Series),
			MUID: e.MUID, Details: e.Details, Raw: e.Raw})
		return failed == nil
	}
	for f.at.Compare(f.end) < 0 && failed == nil {
		if err := ctx.Err(); err != nil {
			return err
		}
		f.events, f.portion = 0, movePortion
		if err := s.feedNext(ctx, f); err != nil {
			return err
		}
	}
	return failed
}

// Keys implements migrate.Data.
func (s source) Keys(ctx context.Context, since uint64, use func(*migrate.Key) error) (moment uint64, err error) {
	return s.journal.Keys(ctx, since, use)
}

// Control implements migrate.Data. The certificates are among it.
func (s source) Control(ctx context.Context) (*migrate.Control, error) {
	records, err := s.control.Export()
	if err != nil {
		return nil, err
	}
	c := &migrate.Control{Records: records}
	if c.Documents, err = store.KeptDocuments(func(kind store.DocumentKind) ([]store.Document, error) { return s.control.Documents(ctx, kind, "", "") }); err != nil {
		return nil, err
	}
	err = eachCertificate(s.dir, func(path string, content []byte) error {
		if !strings.HasPrefix(path, "locks/") { // of certmagic, in this process
			c.Files = append(c.Files, migrate.File{Path: path, Content: content})
		}
		return nil
	})
	slices.SortFunc(c.Files, func(a, b migrate.File) int { return cmp.Compare(a.Path, b.Path) })
	return c, err
}

// Audit implements migrate.Data.
func (s source) Audit(ctx context.Context, after store.AuditID, use func(*store.AuditEntry) error) error {
	return s.control.Entries(ctx, after, use)
}

// Freeze implements migrate.Source.
func (s source) Freeze(ctx context.Context) (migrate.Frozen, error) {
	if err := s.control.Tidy(ctx); err != nil { // when keys were last used
		return nil, err
	}
	s.control.Freeze(errMoving)
	if err := s.journal.Pause(ctx, errMoving); err != nil {
		s.control.Freeze(nil)
		return nil, err
	}
	return &frozen{source: s}, nil
}

// frozen implements migrate.Frozen.
type frozen struct {
	source
	marked bool
}

// MarkMoved implements migrate.Frozen.
func (f *frozen) MarkMoved(_ context.Context, to migrate.Place) error {
	text, err := json.Marshal(Moved{to, f.now().UTC()})
	if err != nil {
		return err
	}
	path := filepath.Join(f.dir, movedFile)
	err = durable.ReplaceFile(path, text)
	info, failed := os.Stat(path)
	f.marked = failed == nil && info.Mode().IsRegular() // even after an error: a power cut may or may not keep the file, so the engine stays frozen
	return err
}

// Thaw implements migrate.Frozen.
func (f *frozen) Thaw() {
	if !f.marked {
		f.journal.Resume()
		f.control.Freeze(nil)
	}
}
