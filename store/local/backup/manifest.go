package backup

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Manifest describes a point.
type Manifest struct {
	Format int       `json:"format"`
	Point  string    `json:"point"`
	Data   string    `json:"data"`             // the id of the data directory
	Time   time.Time `json:"time"`             // the moment that the point is of
	Number uint64    `json:"number,omitempty"` // of the data directory's points, in the order in which they were made; 0 in older ones

	Parent string `json:"parent,omitempty"` // the point on which it builds; empty for a base
	Small  bool   `json:"small,omitempty"`

	Since          uint64 `json:"since"`             // the parent's version; 0 for a base
	Version        uint64 `json:"version"`           // the last commit of the journal
	LastChunk      uint64 `json:"lastChunk"`         // the last chunk of the journal
	Archive        uint64 `json:"archive,omitempty"` // the end of the archive's log
	ControlVersion uint64 `json:"controlVersion"`    // points with the same one have the same control data

	Recipients []string `json:"recipients,omitempty"` // of encrypted pieces

	Control      []Piece `json:"control"`
	Certificates []Piece `json:"certificates,omitempty"`
	Events       []Piece `json:"events"`

	Count Count `json:"count"` // of what is in Events
}

// Count is what the events of a point are.
type Count struct {
	Entries   int      `json:"entries"` // of all kinds
	Chunks    int      `json:"chunks"`  // of the journal, and blocks of the archive
	Events    int      `json:"events"`  // in these; those of chunks and blocks that were replaced later count as well
	Deletions int      `json:"deletions,omitempty"`
	Damaged   []uint64 `json:"damaged,omitempty"` // the numbers of chunks that could not be read
	Live      *int     `json:"live,omitempty"`    // events that the point has when it is restored; nil: unknown, or in an older point
}

func (c *Count) add(o Count) {
	c.Entries += o.Entries
	c.Chunks += o.Chunks
	c.Events += o.Events
	c.Deletions += o.Deletions
	c.Damaged = append(c.Damaged, o.Damaged...)
}

// The versions of the layout. The second one has blocks of the archive among its entries.
const (
	format        = 1
	formatArchive = 2
)

// Format is the newest version that this program reads.
const Format = formatArchive

// maxManifest bounds the memory of an object that only has the name of a manifest. One piece takes about 250 bytes.
const maxManifest = 64 << 20

// pointTime is the time in the name of a point.
const pointTime = "20060102T150405.000Z"

// newPoint makes up the name of a point.
func newPoint(at time.Time) string {
	return at.UTC().Format(pointTime) + "-" + strings.ToLower(rand.Text()[:4])
}

func manifestName(data, point string) string { return data + "/points/" + point + ".json" }

func objectsPrefix(data, point string) string { return data + "/objects/" + point + "/" }

// pieces returns all pieces of a point.
func (m *Manifest) pieces() []Piece { return slices.Concat(m.Control, m.Certificates, m.Events) }

// Written returns how many bytes the point has added to the destination.
func (m *Manifest) Written() (bytes int64) {
	for _, p := range m.pieces() {
		if strings.HasPrefix(p.Name, objectsPrefix(m.Data, m.Point)) {
			bytes += int64(p.Size)
		}
	}
	return bytes
}

// eventBytes returns the size of what is new since the parent.
func (m *Manifest) eventBytes() (bytes int64) {
	for _, p := range m.Events {
		bytes += int64(p.Size)
	}
	return bytes
}

func (m *Manifest) marshal() ([]byte, error) {
	text, err := json.Marshal(m)
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(text)
	return append(hex.AppendEncode(nil, sum[:]), append([]byte("\n"), text...)...), nil
}

func unmarshalManifest(b []byte) (*Manifest, error) {
	sum, text, _ := bytes.Cut(b, []byte("\n"))
	if want := sha256.Sum256(text); string(sum) != hex.EncodeToString(want[:]) {
		return nil, errors.New("its checksum is wrong")
	}
	var m Manifest
	if err := json.Unmarshal(text, &m); err != nil {
		return nil, err
	}
	if m.Format != format && m.Format != formatArchive {
		return nil, fmt.Errorf("format %d is not known to this version, which reads %d", m.Format, formatArchive)
	}
	return &m, nil
}

// readManifest reads and checks the manifest in an object.
func readManifest(ctx context.Context, d Destination, name string) (*Manifest, error) {
	b, err := d.Get(ctx, name, maxManifest)
	if err != nil {
		return nil, err
	}
	m, err := unmarshalManifest(b)
	if err == nil && manifestName(m.Data, m.Point) != name {
		err = errors.New("it is the manifest of another point")
	}
	return m, err
}
