package backup

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"
)

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
		r.Since, r.LastChunk, r.Archive, r.ControlVersion = p.Version, p.LastChunk, p.Archive, p.ControlVersion
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
	parts := map[byte]*part{
		frameControl:     {list: &w.m.Control, limit: controlPiece},
		frameCertificate: {list: &w.m.Certificates, limit: pieceSize},
		frameEntries:     {list: &w.m.Events, limit: pieceSize},
	}
	for {
		kind, content, err := f.next()
		if err != nil {
			return err
		}
		w.done += int64(len(content))
		if w.opt.Progress != nil {
			w.opt.Progress(w.done, w.header.Size)
		}
		if kind == frameEnd {
			return errors.Join(json.Unmarshal(content, &w.m.Count), w.flush(ctx, parts[frameControl]),
				w.flush(ctx, parts[frameCertificate]), w.flush(ctx, parts[frameEntries]))
		}
		if parts[kind] == nil {
			return fmt.Errorf("the stream has an unknown frame %q", kind)
		}
		if err := w.add(ctx, parts[kind], content); err != nil {
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
		w.parent, w.why = nil, "the newest point cannot be continued: events were erased since, or the directory was restored, repaired or copied"
	}
	w.m.Point, w.m.Time = newPoint(h.Time), h.Time.UTC()
	w.m.Since, w.m.Version, w.m.LastChunk, w.m.ControlVersion = h.Since, h.Version, h.LastChunk, h.ControlVersion
	if w.m.Archive = h.Archive; w.m.Archive > 0 {
		w.m.Format = formatArchive
	}
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

// part gathers what becomes the pieces of a list.
type part struct {
	bytes.Buffer
	list  *[]Piece
	limit int // of a piece, unless one frame is larger
}

// controlPiece is the size of the pieces of control.db. They are small, because a change touches few pages.
const controlPiece = 256 << 10

// add appends the content of a frame, which is not split.
func (w *writing) add(ctx context.Context, p *part, content []byte) error {
	if p.Len() > 0 && p.Len()+len(content) > p.limit {
		if err := w.flush(ctx, p); err != nil {
			return err
		}
	}
	p.Write(content)
	return nil
}

// flush writes a piece.
func (w *writing) flush(ctx context.Context, p *part) error {
	if p.Len() == 0 {
		return nil
	}
	defer p.Reset()
	plain := p.Bytes()
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
	*p.list = append(*p.list, piece)
	return nil
}

// isNothing reports whether there is nothing new that is worth a small point.
func (w *writing) isNothing() bool {
	return w.opt.Small && w.parent != nil && w.m.Version == w.parent.Version && w.m.ControlVersion == w.parent.ControlVersion
}

// finish writes the manifest, unless the backup was interrupted.
func (w *writing) finish(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if age := w.opt.Now().Sub(w.started); age > garbageAge-time.Hour {
		return fmt.Errorf("the backup took %s, more than a day: another one may have removed its objects", age)
	}
	text, err := w.m.marshal()
	if err != nil {
		return err
	}
	return w.d.Put(ctx, manifestName(w.m.Data, w.m.Point), text)
}
