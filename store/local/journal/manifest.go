package journal

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/dgraph-io/badger/v4/pb"
	"google.golang.org/protobuf/proto"

	"mtagd/store/local/codec"
)

// Badger's MANIFEST lists its tables. It is a header and records: size (4), CRC-32C (4), pb.ManifestChangeSet. Badger
// removes every table that is not listed, and so deletes them all when the file is missing or cut short.
var manifestHeader = []byte{'B', 'd', 'g', 'r', 0, 0, 0, 8}

// manifest is what could be read of a MANIFEST.
type manifest struct {
	tables  map[uint64]*pb.ManifestChange // the listed tables
	newest  []uint64                      // the tables of the last record
	highest uint64                        // the highest number of a table in any record
	sound   bool                          // the file exists and all of it could be read
}

// readManifest reads a MANIFEST up to the first damage.
func readManifest(path string) (m manifest, err error) {
	m.tables = map[uint64]*pb.ManifestChange{}
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return m, nil
	}
	if err != nil {
		return m, err
	}
	m.sound = bytes.HasPrefix(b, manifestHeader)
	for b = b[min(len(b), len(manifestHeader)):]; len(b) > 0; {
		change, rest, ok := cutManifestRecord(b)
		if !ok {
			m.sound = false
			break
		}
		b = rest
		m.apply(change)
	}
	return m, nil
}

func cutManifestRecord(b []byte) (change *pb.ManifestChangeSet, rest []byte, ok bool) {
	if len(b) < 8 {
		return nil, nil, false
	}
	size, sum, b := binary.BigEndian.Uint32(b), binary.BigEndian.Uint32(b[4:]), b[8:]
	if uint64(size) > uint64(len(b)) || crc32.Checksum(b[:size], castagnoli) != sum {
		return nil, nil, false
	}
	change = &pb.ManifestChangeSet{}
	return change, b[size:], proto.Unmarshal(b[:size], change) == nil
}

func (m *manifest) apply(set *pb.ManifestChangeSet) {
	if len(set.Changes) > 0 {
		m.newest = nil
	}
	for _, c := range set.Changes {
		m.highest = max(m.highest, c.Id)
		if c.Op == pb.ManifestChange_DELETE {
			delete(m.tables, c.Id)
		} else {
			m.tables[c.Id] = c
			m.newest = append(m.newest, c.Id)
		}
	}
}

func tablePath(dir string, id uint64) string { return filepath.Join(dir, fmt.Sprintf("%06d.sst", id)) }

// checkTables checks every table and the MANIFEST. It corrects single wrong bits in tables. It lists every sound table that
// is not listed: after damage it may have what no other table has, and otherwise it does no harm, as the newest version of
// a key counts, wherever it is, and keys are never deleted. It returns the tables whose last writes may not be on the disk.
//
// After a clean stop it checks only the indexes of tables.
func checkTables(dir string, ids []uint64, clean bool, aside *setAside, log *slog.Logger) (unsure []uint64, err error) {
	path := filepath.Join(dir, "MANIFEST")
	m, err := readManifest(path)
	if err != nil {
		return nil, err
	}
	progress := newProgress(log, "the tables in events/ are checked", len(ids))
	changed := !m.sound && len(ids) > 0
	unsure = m.newest
	cutShort := !m.sound
	for _, id := range ids {
		progress.step()
		entry, listed := m.tables[id]
		if clean && listed {
			if sound, err := hasSoundIndex(tablePath(dir, id)); err != nil {
				return nil, err
			} else if sound {
				continue
			}
		}
		err := checkTableFile(tablePath(dir, id), entry.GetCompression() != 0, aside)
		switch {
		case errors.Is(err, codec.ErrCorrupt) && !listed:
			// A kill leaves such a file while Badger writes it. But a damaged MANIFEST may have listed it.
			if err := aside.move(tablePath(dir, id), "a table that is not complete and not listed in MANIFEST", !m.sound); err != nil {
				return nil, err
			}
		case err != nil:
			return nil, err
		case !listed:
			m.tables[id] = &pb.ManifestChange{Id: id}
			cutShort = cutShort || id > m.highest
			unsure = append(unsure, id)
			changed = true
		}
	}
	for id := range m.tables {
		if slices.Contains(ids, id) {
			continue
		}
		if !cutShort {
			return nil, fmt.Errorf("%s is missing: %w; restore it from a backup", tablePath(dir, id), codec.ErrCorrupt)
		}
		log.Warn("a table that MANIFEST lists is missing. As MANIFEST is damaged, the table was probably replaced by others",
			"file", tablePath(dir, id))
		delete(m.tables, id)
		changed = true
	}
	if !changed {
		return unsure, nil
	}
	list, err := encodeManifest(m.tables)
	if err != nil {
		return nil, err
	}
	if _, err := os.Stat(path); err == nil && !m.sound {
		return unsure, aside.replace(path, list, "it is damaged or ends within a record; the tables are listed anew", false)
	} else if err != nil {
		log.Warn("MANIFEST was missing; the tables are listed anew", "file", path)
	}
	return unsure, aside.spare.withSpace(func() error { return ReplaceFile(path, list) })
}

func checkTableFile(path string, compressed bool, aside *setAside) error {
	b, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	corrected, err := checkTable(b, compressed)
	if err != nil {
		return fmt.Errorf("%s is damaged: %w; restore it from a backup", path, err)
	}
	if !corrected {
		return nil
	}
	return aside.replace(path, b, "a wrong bit was corrected", false)
}

// encodeManifest returns a MANIFEST that lists these tables.
func encodeManifest(tables map[uint64]*pb.ManifestChange) ([]byte, error) {
	set := pb.ManifestChangeSet{}
	for _, id := range slices.Sorted(maps.Keys(tables)) {
		set.Changes = append(set.Changes, tables[id])
	}
	record, err := proto.Marshal(&set)
	if err != nil {
		return nil, err
	}
	b := binary.BigEndian.AppendUint32(bytes.Clone(manifestHeader), uint32(len(record)))
	b = binary.BigEndian.AppendUint32(b, crc32.Checksum(record, castagnoli))
	return append(b, record...), nil
}

// progress logs how far something is that may take long.
type progress struct {
	log     *slog.Logger
	message string
	n, of   int
	next    time.Time
}

func newProgress(log *slog.Logger, message string, of int) *progress {
	return &progress{log: log, message: message, of: of, next: time.Now().Add(progressInterval)}
}

// progressInterval is how often the progress is logged. Most checks take less.
const progressInterval = 5 * time.Second

func (p *progress) step() {
	p.n++
	if time.Now().After(p.next) {
		p.next = time.Now().Add(progressInterval)
		p.log.Info(p.message, "percent", 100*p.n/p.of)
	}
}
