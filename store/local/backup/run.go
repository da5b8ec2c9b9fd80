package backup

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"time"

	"filippo.io/age"
)

// Options are what a backup can be told.
type Options struct {
	Full         bool          // make a base
	Certificates bool          // back up certificates too
	Recipients   []string      // encrypt for these age recipients; empty: do not encrypt
	Keep         time.Duration // remove points that are older; 0: keep all
	Small        bool          // one of a backup every few seconds: a point only when there is something new
	Fold         bool          // build on the newest point that is not small

	Progress func(done, total int64) // bytes; may be nil. A total of 0 is unknown
	Log      *slog.Logger
	Now      func() time.Time
}

// Result is what a backup has done.
type Result struct {
	Point   *Manifest
	Why     string // of a base: why it is one
	Nothing bool   // nothing was new, and no point was made: Point is the newest one
	Removed int    // points that are no longer kept
}

// Backup makes points of one data directory in one destination. It remembers what is there.
type Backup struct {
	d       Destination
	src     Source
	catalog catalog
	cleaned time.Time // when clean ran last
}

// cleanEvery is how often a backup every few seconds removes what is no longer needed.
const cleanEvery = 10 * time.Minute

// New returns a Backup.
func New(d Destination, src Source) *Backup { return &Backup{d: d, src: src, catalog: catalog{d: d}} }

// Newest returns the time of the newest point of the data directory; it is zero when there is none.
func (b *Backup) Newest(ctx context.Context) (time.Time, error) {
	data, err := b.src.ID(ctx)
	if err != nil {
		return time.Time{}, err
	}
	points, err := b.catalog.load(ctx, data)
	if len(points) == 0 {
		return time.Time{}, err
	}
	return points[len(points)-1].Time, nil
}

// Run makes a point, and then removes what is no longer needed.
func (b *Backup) Run(ctx context.Context, opt Options) (result Result, err error) {
	recipients, err := parseRecipients(opt.Recipients)
	if err != nil {
		return Result{}, err
	}
	data, err := b.src.ID(ctx)
	if err != nil {
		return Result{}, err
	}
	unlock, exclusive, err := b.d.Lock(ctx, data)
	if err != nil {
		return Result{}, err
	}
	defer func() { err = errors.Join(err, unlock()) }()
	points, unreadable := b.catalog.load(ctx, data)
	if unreadable != nil && (points == nil || ctx.Err() != nil) {
		return Result{}, unreadable
	}
	if unreadable != nil {
		opt.Log.Warn("backup: points cannot be read", "error", unreadable)
	}
	parent, why := parentFor(points, opt, opt.Now())
	if parent != nil && !opt.Small { // which come too often to look at everything
		if err := b.complete(ctx, points, parent); err != nil {
			parent, why = nil, err.Error()
		}
	}
	w := &writing{d: b.d, opt: opt, parent: parent, why: why, started: opt.Now(),
		small: opt.Small && !opt.Fold && parent != nil && parent == points[len(points)-1],
		m:     Manifest{Format: format, Data: data, Recipients: opt.Recipients}}
	if w.pieces, err = newPieces(recipients, nil); err != nil {
		return Result{}, err
	}
	defer w.pieces.close()
	if err := b.stream(ctx, w); err != nil {
		return Result{}, err
	}
	if w.isNothing() {
		return Result{Point: parent, Nothing: true}, nil
	}
	if err := w.finish(ctx); err != nil {
		return Result{}, err
	}
	result = Result{Point: &w.m, Why: w.why}
	if unreadable == nil && (!opt.Small || opt.Now().Sub(b.cleaned) > cleanEvery) {
		b.cleaned = opt.Now()
		result.Removed, err = b.clean(ctx, append(points, &w.m), exclusive, w.started, opt)
	}
	return result, err
}

// complete returns an error when an object of a point's chain is missing.
func (b *Backup) complete(ctx context.Context, points []*Manifest, m *Manifest) error {
	chain, err := chainOf(points, m)
	if err != nil {
		return err
	}
	stored, err := b.d.List(ctx, m.Data+"/objects/")
	if err != nil {
		return err
	}
	sizes := map[string]int64{}
	for _, object := range stored {
		sizes[object.Name] = object.Size
	}
	for _, part := range chain {
		for _, piece := range part.pieces() {
			if size, ok := sizes[piece.Name]; !ok || size != int64(piece.Size) {
				return fmt.Errorf("%s of the last chain is missing or too short", piece.Name)
			}
		}
	}
	return nil
}

// CheckRecipients returns an error for a text that is no age recipient.
func CheckRecipients(texts []string) error {
	_, err := parseRecipients(texts)
	return err
}

func parseRecipients(texts []string) (recipients []age.Recipient, err error) {
	for _, text := range texts {
		parsed, err := age.ParseRecipients(bytes.NewReader([]byte(text)))
		if err != nil {
			return nil, fmt.Errorf("recipient %q: %w", text, err)
		}
		recipients = append(recipients, parsed...)
	}
	return recipients, nil
}

// stream reads the data directory, and writes what it reads.
func (b *Backup) stream(ctx context.Context, w *writing) error {
	ctx, cancel := context.WithCancel(ctx)
	r, pipe := io.Pipe()
	done := make(chan error, 1)
	go func() {
		err := b.src.Stream(ctx, w.request(), pipe)
		done <- err
		pipe.CloseWithError(errors.Join(err, io.EOF))
	}()
	err := w.read(ctx, newFrames(r))
	cancel()
	r.CloseWithError(errors.New("the backup has ended"))
	if streamErr := <-done; err != nil && streamErr != nil && errors.Is(err, errCut) {
		err = streamErr
	}
	return err
}

// writing is a point that is being made.
type writing struct {
	d       Destination
	opt     Options
	pieces  *pieces
	started time.Time

	parent *Manifest // nil: a base
	why    string    // why it is a base
	small  bool
	m      Manifest

	objects  int // written so far
	done     int64
	header   Header
	reusable map[string]Piece // the parent's pieces, by the checksum of what is in them
}

func (w *writing) request() Request {
	r := Request{Certificates: w.opt.Certificates, Small: w.opt.Small}
	if p := w.parent; p != nil {
		r.Since, r.LastChunk, r.ControlVersion = p.Version, p.LastChunk, p.ControlVersion
		r.Needed = p.Version
		if p.Small {
			r.Needed = 0 // the small points since the last larger one will be folded
		}
		r.Certificates = w.opt.Certificates && !(w.opt.Small && p.Small)
	}
	return r
}

// read reads a stream to its end, and writes its pieces.
func (w *writing) read(ctx context.Context, f *frames) error {
	kind, content, err := f.next()
	if err != nil {
		return err
	}
	if kind != frameHeader {
		return fmt.Errorf("the stream begins with frame %q", kind)
	}
	if err := w.begin(content); err != nil {
		return err
	}
	var control, certificates, events bytes.Buffer
	for {
		kind, content, err := f.next()
		if err != nil {
			return err
		}
		w.done += int64(len(content))
		if w.opt.Progress != nil {
			w.opt.Progress(w.done, w.header.Size)
		}
		switch kind {
		case frameControl:
			err = w.gather(ctx, &control, content, &w.m.Control)
		case frameCertificate:
			err = w.whole(ctx, &certificates, content, &w.m.Certificates)
		case frameEntries:
			err = w.whole(ctx, &events, content, &w.m.Events)
		case frameEnd:
			return errors.Join(json.Unmarshal(content, &w.m.Count), w.flush(ctx, &control, &w.m.Control),
				w.flush(ctx, &certificates, &w.m.Certificates), w.flush(ctx, &events, &w.m.Events))
		default:
			err = fmt.Errorf("the stream has an unknown frame %q", kind)
		}
		if err != nil {
			return err
		}
	}
}

func (w *writing) begin(content []byte) error {
	if err := json.Unmarshal(content, &w.header); err != nil {
		return err
	}
	h := w.header
	if w.parent != nil && h.Since == 0 && w.parent.Version != 0 {
		w.parent, w.why = nil, "the newest point is not of this directory's past: was the directory restored or copied?"
	}
	w.m.Point, w.m.Time = newPoint(h.Time), h.Time.UTC()
	w.m.Since, w.m.Version, w.m.LastChunk, w.m.ControlVersion = h.Since, h.Version, h.LastChunk, h.ControlVersion
	w.reusable = map[string]Piece{}
	p := w.parent
	if p == nil {
		return nil
	}
	w.m.Parent, w.m.Small = p.Point, w.small
	for _, piece := range slices.Concat(p.Control, p.Certificates) {
		w.reusable[piece.Plain] = piece
	}
	if h.ControlVersion == p.ControlVersion {
		w.m.Control = p.Control
	}
	if !w.request().Certificates && w.opt.Certificates {
		w.m.Certificates = p.Certificates
	}
	return nil
}

// gather appends to a part, and writes it in pieces of pieceSize.
func (w *writing) gather(ctx context.Context, part *bytes.Buffer, content []byte, list *[]Piece) error {
	for len(content) > 0 {
		n := min(len(content), controlPiece-part.Len())
		part.Write(content[:n])
		content = content[n:]
		if part.Len() == controlPiece {
			if err := w.flush(ctx, part, list); err != nil {
				return err
			}
		}
	}
	return nil
}

// controlPiece is the size of the pieces of control.db. They are small, because a change of the file touches few of its pages.
const controlPiece = 256 << 10

// whole appends entries to a part, and writes it when it is large enough. No piece ends in the middle of an entry.
func (w *writing) whole(ctx context.Context, part *bytes.Buffer, content []byte, list *[]Piece) error {
	if part.Len() > 0 && part.Len()+len(content) > pieceSize {
		if err := w.flush(ctx, part, list); err != nil {
			return err
		}
	}
	part.Write(content)
	return nil
}

// flush writes a piece.
func (w *writing) flush(ctx context.Context, part *bytes.Buffer, list *[]Piece) error {
	if part.Len() == 0 {
		return nil
	}
	defer part.Reset()
	plain := part.Bytes()
	piece, ok := w.reusable[sum(plain)]
	if !ok {
		stored, err := w.pieces.pack(plain)
		if err != nil {
			return err
		}
		w.objects++
		piece = Piece{
			Name: fmt.Sprintf("%s%06d", objectsPrefix(w.m.Data, w.m.Point), w.objects),
			Size: len(stored), SHA256: sum(stored), Plain: sum(plain),
		}
		if err := w.d.Put(ctx, piece.Name, stored); err != nil {
			return err
		}
	}
	*list = append(*list, piece)
	return nil
}

// isNothing reports whether there is nothing new that is worth a small point.
func (w *writing) isNothing() bool {
	return w.opt.Small && w.parent != nil && w.m.Version == w.parent.Version && w.m.ControlVersion == w.parent.ControlVersion
}

// finish writes the manifest.
func (w *writing) finish(ctx context.Context) error {
	if age := w.opt.Now().Sub(w.started); age > garbageAge-time.Hour {
		return fmt.Errorf("the backup took %s, more than a day: another one may have removed its objects", age)
	}
	text, err := w.m.marshal()
	if err != nil {
		return err
	}
	return w.d.Put(ctx, manifestName(w.m.Data, w.m.Point), text)
}

// clean removes points that are no longer kept, and objects that belong to no point.
func (b *Backup) clean(ctx context.Context, points []*Manifest, exclusive bool, started time.Time, opt Options) (removed int, err error) {
	gone := obsolete(points, opt.Keep, opt.Now())
	for _, m := range gone { // the manifests first: a point without all its objects would be a false one
		if err := b.d.Delete(ctx, manifestName(m.Data, m.Point)); err != nil {
			return removed, err
		}
		removed++
	}
	kept := slices.DeleteFunc(slices.Clone(points), func(m *Manifest) bool { return slices.Contains(gone, m) })
	stored, err := b.d.List(ctx, points[0].Data+"/objects/")
	if err != nil {
		return removed, err
	}
	minAge := garbageAge
	if exclusive {
		minAge = 0
	}
	for _, name := range garbage(stored, kept, minAge, opt.Now()) {
		if err := b.d.Delete(ctx, name); err != nil {
			return removed, err
		}
	}
	return removed, nil
}
