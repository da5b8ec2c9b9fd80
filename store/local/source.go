package local

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"mtagd/store"
	"mtagd/store/local/archive"
	"mtagd/store/local/backup"
	"mtagd/store/local/codec"
	"mtagd/store/local/journal"
)

// certificatesDir is where the certificates of a data directory are, below it.
const certificatesDir = "certificates"

// Source streams a data directory to a backup. It implements backup.Source.
type Source struct {
	reader      *reader
	background  *background
	closeEngine func() error  // nil: the source does not own the engine
	full        chan struct{} // holds a value while a stream reads the whole journal
}

// SourceOf returns the source of an engine that runs. The engine's Close cuts off the streams.
func SourceOf(opened store.Engine) *Source {
	e := opened.(*engine)
	return &Source{reader: e.reader, background: e.background, full: make(chan struct{}, 1)}
}

// OpenSource opens the data directory as a source, when no server runs. It fails with store.ErrInUse when one does.
func OpenSource(dir string, opt Options) (*Source, error) {
	opt.keepAll = true
	e, err := Open(dir, opt)
	if err != nil {
		return nil, err
	}
	s := SourceOf(e)
	s.closeEngine = e.Close
	return s, nil
}

// Close closes what OpenSource has opened, which cuts off its streams.
func (s *Source) Close() error {
	if s.closeEngine == nil {
		return nil
	}
	return s.closeEngine()
}

// ID implements backup.Source.
func (s *Source) ID(context.Context) (string, error) { return s.reader.control.ID() }

// Stream implements backup.Source.
func (s *Source) Stream(ctx context.Context, r backup.Request, to io.Writer) error {
	ctx, done, err := s.reader.beginReading(ctx)
	if err != nil {
		return err
	}
	defer done()
	end, err := s.reader.turns.stream(ctx)
	if err != nil {
		return err
	}
	defer end()
	p := s.background.pacer(ctx, backupWork)
	p.work = func() work { // the metrics stay those of backups
		if s.background.purging.Load() {
			return eraseWork
		}
		return backupWork
	}
	w := backup.NewWriter(&pacedWriter{p, to})
	if err := s.stream(ctx, r, w); err != nil {
		return errors.Join(err, w.Fail(err))
	}
	return nil
}

// stream writes everything that was asked for.
func (s *Source) stream(ctx context.Context, r backup.Request, w *backup.Writer) error {
	continued, err := s.canContinue(r)
	if err != nil {
		return err
	}
	if !continued {
		r.Since, r.Archive, r.ControlVersion = 0, 0, 0
	}
	if r.Since == 0 {
		s.reader.turns.whole.Add(1)
		defer s.reader.turns.whole.Add(-1)
	}
	if r.Small && r.Since > 0 {
		if done, err := s.streamRecent(ctx, r, w); done || err != nil {
			return err
		}
	}
	select {
	case s.full <- struct{}{}:
		defer func() { <-s.full }()
	case <-ctx.Done():
		return ctx.Err()
	}
	release := sync.OnceFunc(s.reader.PauseMoves())
	defer release()
	archived, err := s.reader.archive.Snapshot()
	if err != nil {
		return err
	}
	defer archived.Close()
	if err := s.reader.checkCounts(ctx); err != nil {
		return err
	}
	var events journal.Snapshot
	defer func() { events.Close() }()
	return s.write(ctx, r, w, archived, func() (m moment, err error) {
		events, err = s.reader.journal.Snapshot()
		m.version = events.Version
		m.unarchived = s.reader.journal.Counter(archived.Boundary, events.Version)
		m.entries = func(use func(e codec.Entry, events int) error) error {
			return events.Entries(ctx, r.Since, use, func(seq uint64, err error) {
				s.reader.log.Error("backup: a damaged chunk is left out", "chunk", seq, "error", err)
				w.Damaged(seq)
			})
		}
		release()
		return m, err
	})
}

// moment is the journal as of one version.
type moment struct {
	version    uint64
	entries    func(use func(e codec.Entry, events int) error) error // what is new
	unarchived func() (events int, err error)                        // how many events the archive does not have
}

// write writes a stream: without its end frame, it is not everything. now returns the moment of the stream; no control data
// changes while it runs.
func (s *Source) write(ctx context.Context, r backup.Request, w *backup.Writer, archived archive.Snapshot, now func() (moment, error)) error {
	m, err := s.begin(r, w, archived, now)
	if err == nil {
		err = s.streamArchive(ctx, r, archived, w)
	}
	if err == nil {
		err = m.entries(func(e codec.Entry, n int) error { return w.Entry(e, journal.IsChunk(e), n) })
	}
	if err != nil {
		return err
	}
	if n, err := m.unarchived(); err == nil { // else damage hides how many there are, and a restore does not compare them
		w.Live(archived.Events + n)
	}
	return w.End()
}

// canContinue reports whether the journal and the archive still have what the last backup has, and whether that backup
// can be continued.
func (s *Source) canContinue(r backup.Request) (bool, error) {
	archived, err := s.reader.archive.Snapshot()
	if err != nil {
		return false, err
	}
	defer archived.Close()
	if r.Since > s.reader.journal.Version() || r.Archive > archived.Version || r.Archive > 0 && r.Archive <= archived.Purged {
		return false, nil
	}
	if r.LastChunk <= archived.Boundary {
		return true, nil
	}
	return s.reader.journal.HasChunk(r.LastChunk), nil
}

// streamRecent writes the stream of a small backup, if the log still has all commits, and reports whether it did.
func (s *Source) streamRecent(ctx context.Context, r backup.Request, w *backup.Writer) (done bool, err error) {
	defer s.reader.journal.KeepLog()()
	release := s.reader.PauseMoves()
	version, entries := s.reader.journal.Recent(r.Since, r.Needed)
	archived, err := s.reader.archive.Snapshot()
	unarchived := s.reader.journal.Counter(archived.Boundary, version)
	release()
	defer archived.Close()
	if entries == nil || err != nil {
		return false, err
	}
	// Control data that is newer than the events does no harm: an event without its tag would.
	return true, s.write(ctx, r, w, archived, func() (moment, error) {
		return moment{version, func(use func(e codec.Entry, events int) error) error {
			return entries(func(e codec.Entry) error {
				events, err := journal.CheckEntry(e)
				if err = cmp.Or(ctx.Err(), err); err != nil {
					return err
				}
				return use(e, events)
			})
		}, unarchived}, nil
	})
}

// begin writes the header, the control data and the certificates.
func (s *Source) begin(r backup.Request, w *backup.Writer, archived archive.Snapshot, now func() (moment, error)) (m moment, err error) {
	h := backup.Header{Since: r.Since, Archive: archived.Version}
	var failed error
	data, err := s.reader.control.Snapshot(func() {
		h.Time = s.reader.now()
		m, failed = now()
	})
	if err != nil {
		return m, err
	}
	defer func() { err = errors.Join(err, data.Close()) }()
	if failed != nil {
		return m, failed
	}
	h.Version, h.ControlVersion = m.version, data.Version
	if h.LastChunk, err = s.reader.journal.LastChunkAt(h.Version); err != nil {
		return m, err
	}
	h.LastChunk = max(h.LastChunk, archived.Boundary)
	if r.Since == 0 {
		h.Size = s.reader.journal.Size() + archived.Size() + data.Size()
	}
	if err := w.Header(h); err != nil {
		return m, err
	}
	if data.Version != r.ControlVersion {
		if _, err := data.WriteTo(w); err != nil {
			return m, fmt.Errorf("control data: %w", err)
		}
	}
	if r.Certificates {
		err = eachCertificate(s.reader.dir, w.Certificate)
	}
	return m, err
}

// eachCertificate passes all files below the directory of certificates of a data directory.
func eachCertificate(dir string, use func(path string, content []byte) error) error {
	root := filepath.Join(dir, certificatesDir)
	return filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) { // there are none, or one was replaced just now
			return nil
		}
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		content, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		name, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		return use(filepath.ToSlash(name), content)
	})
}

// The keys of the archive's entries in a backup. No key of the journal begins with these bytes. A block has the key
// prefixBlock followed by its key in the archive. The boundary (8 bytes, big endian) has the key prefixBoundary.
const (
	prefixBlock    = 'P'
	prefixBoundary = 'Q'
)

// streamArchive writes the blocks of the archive that are new, and the boundary.
func (s *Source) streamArchive(ctx context.Context, r backup.Request, archived archive.Snapshot, w *backup.Writer) error {
	if archived.Boundary == 0 {
		return nil
	}
	key := []byte{prefixBlock}
	if err := archived.Blocks(ctx, r.Archive, r.LastChunk, func(e codec.Entry, n int) error {
		key = append(key[:1], e.Key...)
		e.Key = key
		return w.Entry(e, true, n)
	}, func(err error) {
		s.reader.log.Error("backup: damaged events of the archive are left out", "error", err)
		w.Damaged(0)
	}); err != nil {
		return err
	}
	return w.Entry(codec.Entry{Key: []byte{prefixBoundary}, Value: binary.BigEndian.AppendUint64(nil, archived.Boundary)}, false, 0)
}

// CheckEntry is the backup.Check of the entries of journal and archive.
func CheckEntry(e codec.Entry) (events int, chunk bool, err error) {
	switch {
	case len(e.Key) > 0 && e.Key[0] == prefixBlock:
		e.Key = e.Key[1:]
		events, err = archive.CheckBlock(e)
		return events, true, err
	case len(e.Key) == 1 && e.Key[0] == prefixBoundary:
		if len(e.Value) != 8 {
			err = fmt.Errorf("%w: boundary of the archive", codec.ErrCorrupt)
		}
		return 0, false, err
	}
	events, err = journal.CheckEntry(e)
	return events, journal.IsChunk(e), err
}

// pacedWriter pauses between writes. The time in a write is not work.
type pacedWriter struct {
	*pacer
	w io.Writer
}

func (p *pacedWriter) Write(b []byte) (int, error) {
	p.pause()
	defer p.resume()
	return p.w.Write(b)
}
