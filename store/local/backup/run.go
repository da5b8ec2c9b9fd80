package backup

import (
	"bytes"
	"context"
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
	checked time.Time // when lost ran last
	cleaned time.Time // when clean ran last
}

// cleanEvery is how often a backup every few seconds looks for lost objects, and removes what is no longer needed.
const cleanEvery = 10 * time.Minute

// New returns a Backup.
func New(d Destination, src Source) *Backup { return &Backup{d: d, src: src, catalog: catalog{}} }

// Newest returns the time of the newest point of the data directory; it is zero when there is none.
func (b *Backup) Newest(ctx context.Context) (time.Time, error) {
	data, err := b.src.ID(ctx)
	if err != nil {
		return time.Time{}, err
	}
	points, err := b.catalog.load(ctx, b.d, data)
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
	unlock, err := b.d.Lock(ctx, data)
	if err != nil {
		return Result{}, err
	}
	defer func() { err = errors.Join(err, unlock()) }()
	points, unreadable := b.catalog.load(ctx, b.d, data)
	if unreadable != nil && (points == nil || ctx.Err() != nil) {
		return Result{}, unreadable
	}
	if unreadable != nil {
		opt.Log.Warn("backup: points cannot be read", "error", unreadable)
	}
	parent, why := parentFor(points, opt, opt.Now())
	small := opt.Small && !opt.Fold && parent != nil && parent == points[len(points)-1]
	if parent != nil && (!small || opt.Now().Sub(b.checked) > cleanEvery) { // small ones come too often for a look at everything
		lost, err := b.lost(ctx, points, parent)
		if err != nil {
			return Result{}, err
		}
		if b.checked = opt.Now(); lost != "" {
			parent, small, why = nil, false, lost
		}
	}
	w := &writing{d: b.d, opt: opt, parent: parent, why: why, started: opt.Now(), small: small,
		m: Manifest{Format: format, Data: data, Number: 1, Recipients: opt.Recipients}}
	for _, m := range points {
		w.m.Number = max(w.m.Number, m.Number+1)
	}
	if w.pieces, err = newPieces(recipients, nil); err != nil {
		return Result{}, err
	}
	defer w.pieces.close()
	if err := ctx.Err(); err != nil {
		return Result{}, err // the destination was slow, and the source may have closed
	}
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
		result.Removed, err = b.clean(ctx, append(points, &w.m), opt)
	}
	return result, err
}

// lost says which object of a point's chain is missing or has another size; it is empty when none is.
func (b *Backup) lost(ctx context.Context, points []*Manifest, m *Manifest) (what string, err error) {
	chain, err := chainOf(points, m)
	if err != nil {
		return err.Error(), nil
	}
	stored, err := b.d.List(ctx, m.Data+"/objects/")
	if err != nil {
		return "", err
	}
	sizes := map[string]int64{}
	for _, object := range stored {
		sizes[object.Name] = object.Size
	}
	for _, part := range chain {
		for _, piece := range part.pieces() {
			if size, ok := sizes[piece.Name]; !ok || size != int64(piece.Size) {
				return piece.Name + " of the last chain is missing or has another size", nil
			}
		}
	}
	return "", nil
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
	// A source must not wait for a destination that hangs.
	defer context.AfterFunc(ctx, func() { pipe.CloseWithError(ctx.Err()) })()
	done := make(chan error, 1)
	go func() {
		err := b.src.Stream(ctx, w.request(), pipe)
		done <- err
		pipe.CloseWithError(errors.Join(err, io.EOF))
	}()
	f := newFrames(r)
	err := w.read(ctx, f)
	if err == nil {
		err = f.end() // before cancel, so that streamErr is the source's own
	}
	cancel()
	r.CloseWithError(errors.New("the backup has ended"))
	if streamErr := <-done; streamErr != nil && (err == nil || errors.Is(err, errCut)) {
		err = streamErr
	}
	return err
}

// clean removes points that are no longer kept, and objects that belong to no point.
func (b *Backup) clean(ctx context.Context, points []*Manifest, opt Options) (removed int, err error) {
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
	for _, name := range garbage(stored, kept, gone, opt.Now()) {
		if err := b.d.Delete(ctx, name); err != nil {
			return removed, err
		}
	}
	return removed, nil
}
