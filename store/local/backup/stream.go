package backup

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"mtagd/store/local/codec"
)

// Source is a data directory that is backed up.
type Source interface {
	// ID returns the id of the data directory.
	ID(ctx context.Context) (string, error)
	// Stream writes the data directory as of now to w, through a Writer.
	Stream(ctx context.Context, r Request, w io.Writer) error
}

// Request says what a backup wants.
type Request struct {
	// What has arrived already: the newest entries up to this version, with this last chunk. When the journal does not have
	// the chunk, it is not the one that was backed up, and the stream has everything. Zeroes ask for everything.
	Since     uint64
	LastChunk uint64
	Archive   uint64 // the place in the archive's log up to which it has arrived
	// The control data that has arrived already. When it is still the same, the stream has none.
	ControlVersion uint64

	Certificates bool
	// Small is set for a backup every few seconds: what was committed since Needed may be asked for again.
	Small  bool
	Needed uint64
}

// Header begins a stream.
type Header struct {
	Time           time.Time // the moment that the stream is of
	Since          uint64    // the stream has what was committed after this; 0: everything
	Version        uint64
	LastChunk      uint64
	Archive        uint64 // the end of the archive's log; the stream has what was written after Request.Archive
	ControlVersion uint64
	Size           int64 // about how many bytes follow; 0: unknown
}

// A stream is a sequence of frames: its kind (1 byte), the length of its content (uvarint), the content. The end frame shows
// that nothing was cut off.
const (
	frameHeader      = 'H' // Header as JSON
	frameControl     = 'C' // the next part of control.db
	frameCertificate = 'T' // one entry: the path below the directory of certificates, and the file
	frameEntries     = 'E' // entries of the journal and the archive
	frameFailure     = 'X' // text of the error that ended the stream
	frameEnd         = 'Z' // Count as JSON
)

// Sizes of frames. A writer fills them up to frameSize; a reader refuses those above maxFrame.
const (
	frameSize = 32 << 10
	maxFrame  = 32 << 20
)

// Writer writes a stream: Header, then Write for control.db, Certificate for each file, Entry and Entries, then End.
type Writer struct {
	w       io.Writer
	entries []byte
	count   Count
}

// NewWriter returns a writer of one stream.
func NewWriter(w io.Writer) *Writer { return &Writer{w: w} }

// Header begins the stream.
func (w *Writer) Header(h Header) error { return w.json(frameHeader, h) }

// Write writes the next part of control.db.
func (w *Writer) Write(b []byte) (n int, err error) {
	for len(b) > 0 {
		part := b[:min(len(b), frameSize)]
		if err := w.frame(frameControl, part); err != nil {
			return n, err
		}
		n, b = n+len(part), b[len(part):]
	}
	return n, nil
}

// Certificate writes a file.
func (w *Writer) Certificate(path string, content []byte) error {
	return w.frame(frameCertificate, codec.AppendEntry(nil, codec.Entry{Key: []byte(path), Value: content}))
}

// Entry writes an entry of the journal or the archive; events is how many it has, and chunk says that it is a chunk.
func (w *Writer) Entry(e codec.Entry, chunk bool, events int) error {
	w.entries = codec.AppendEntry(w.entries, e)
	w.count.add(countOf(e, chunk, events))
	if len(w.entries) < frameSize {
		return nil
	}
	return w.flush()
}

// countOf counts one entry.
func countOf(e codec.Entry, chunk bool, events int) Count {
	c := Count{Entries: 1, Events: events}
	if e.Deleted {
		c.Deletions = 1
	} else if chunk {
		c.Chunks = 1
	}
	return c
}

// Damaged notes a chunk that could not be read.
func (w *Writer) Damaged(seq uint64) { w.count.Damaged = append(w.count.Damaged, seq) }

// Live notes how many events the data directory has.
func (w *Writer) Live(events int) { w.count.Live = &events }

// End ends the stream.
func (w *Writer) End() error {
	if err := w.flush(); err != nil {
		return err
	}
	return w.json(frameEnd, w.count)
}

// Fail ends the stream with an error, if it can still be written.
func (w *Writer) Fail(err error) error { return w.frame(frameFailure, []byte(err.Error())) }

func (w *Writer) flush() error {
	if len(w.entries) == 0 {
		return nil
	}
	err := w.frame(frameEntries, w.entries)
	w.entries = w.entries[:0]
	return err
}

func (w *Writer) json(kind byte, v any) error {
	text, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return w.frame(kind, text)
}

func (w *Writer) frame(kind byte, content []byte) error {
	if _, err := w.w.Write(binary.AppendUvarint([]byte{kind}, uint64(len(content)))); err != nil {
		return err
	}
	_, err := w.w.Write(content)
	return err
}

// frames reads the frames of a stream.
type frames struct {
	r   *bufio.Reader
	buf []byte
}

func newFrames(r io.Reader) *frames { return &frames{r: bufio.NewReaderSize(r, 64<<10)} }

// errCut is the error of a stream without its end frame.
var errCut = errors.New("the data directory's stream was cut off")

// next returns the next frame. Its content is valid until the next call.
func (f *frames) next() (kind byte, content []byte, err error) {
	kind, err = f.r.ReadByte()
	var n uint64
	if err == nil {
		n, err = binary.ReadUvarint(f.r)
	}
	if err == nil && n > maxFrame {
		err = fmt.Errorf("a frame is too large: %d bytes", n)
	}
	if err == nil {
		f.buf = slices.Grow(f.buf[:0], int(n))[:n]
		_, err = io.ReadFull(f.r, f.buf)
	}
	switch {
	case errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF):
		return 0, nil, errCut
	case err != nil:
		return 0, nil, err
	case kind == frameFailure:
		return 0, nil, errors.New(string(f.buf))
	}
	return kind, f.buf, nil
}

// end returns nil when nothing follows the end frame. It waits until the source has ended.
func (f *frames) end() error {
	_, err := f.r.ReadByte()
	if err == nil {
		return errors.New("the stream goes on after its end frame")
	}
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}
