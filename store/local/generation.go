package local

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"

	"github.com/cespare/xxhash/v2"
	"golang.org/x/sys/unix"

	"mtagd/store/local/control"
	"mtagd/store/local/durable"
	"mtagd/store/local/space"
)

// Files that are older than the others, as when somebody puts back an old control.db, are noticed at the start.
// DIR/generation says what belongs together:
//
//   - Each opening of the engine has a random number. events/log, events/keys, archive and index.db have the number of
//     the last opening, in a file generation or, index.db, in itself.
//   - The control data has a sum (control.Data.Sum), which each change replaces.
//
// The order of writes, for both: the next number goes to DIR/generation beside the present one, then to the parts or
// control.db; then the present one goes. After a kill between two of these, either number is right. A number that is
// missing or damaged proves nothing, because earlier versions did not have this file, or did not keep it up to date.
//
// Two copies of a record, 512 bytes apart: opening and next opening, sum and next sum of the control data (8 bytes each,
// big endian), their XXH64. It is written in place, even on a full disk. A part's file has the number and its XXH64.
const generationFile = "generation"

// stampedParts have a file with the number of the last opening.
var stampedParts = []string{"events/log", "events/keys", "archive"}

// present is a number, and the one that may have replaced it; equal when there is none.
type present struct{ now, next uint64 }

func (p present) is(number uint64) bool { return number == p.now || number == p.next }

// generation is what DIR/generation says.
type generation struct {
	dir string
	log *slog.Logger

	mu      sync.Mutex
	known   bool // else it is missing
	cutOff  bool // a change of the control data was cut off: one of its two numbers is wrong
	opening present
	control present
}

// readGeneration reads DIR/generation. After an error, nothing is known.
func readGeneration(dir string, log *slog.Logger) (*generation, error) {
	g := &generation{dir: dir, log: log}
	b, err := os.ReadFile(filepath.Join(dir, generationFile))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return g, err
	}
	for _, at := range []int{0, generationCopy} {
		if record := sealedNumbers(b, at, 4); record != nil && !g.known {
			g.known, g.opening, g.control = true, present{record[0], record[1]}, present{record[2], record[3]}
		}
	}
	if !g.known && len(b) > 0 {
		log.Warn(damagedGeneration, "dir", dir)
	}
	return g, nil
}

// sums returns the sums for control.OpenNewest; nil: unknown.
func (g *generation) sums() []uint64 {
	if !g.known {
		return nil
	}
	return []uint64{g.control.now, g.control.next}
}

// compare compares all but index.db with what was read. Nobody else changes the control data meanwhile.
func (g *generation) compare(data *control.Data) error {
	sum, sumKnown := data.Sum()
	if g.known && sumKnown && !g.control.is(sum) {
		return fmt.Errorf("control.db %w: a key that was revoked could be valid again. %s", errOtherTime, adviceOtherTime)
	}
	for _, part := range stampedParts {
		b, err := os.ReadFile(filepath.Join(g.dir, part, generationFile))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		of := sealedNumbers(b, 0, 1)
		if of == nil && len(b) > 0 {
			g.log.Warn(damagedGeneration, "dir", filepath.Join(g.dir, part))
		}
		if g.known && of != nil && !g.opening.is(of[0]) {
			return fmt.Errorf("%s %w. %s", part, errOtherTime, adviceOtherTime)
		}
	}
	if sumKnown {
		g.cutOff = g.known && g.control != present{sum, sum}
		g.control = present{sum, sum}
	}
	return nil
}

// hasIndex reports whether index.db may be that of the last opening. 0: it has no number.
func (g *generation) hasIndex(number uint64) bool {
	return number == 0 || !g.known || g.opening.is(number)
}

var errOtherTime = errors.New("is older than the other files of the directory, or newer")

const adviceOtherTime = `Nothing was changed. Put the files back that belong together, or restore a backup into a new directory. If there is none, let ` +
	`"mtagd repair" make a new directory of these files. If an earlier version of mtagd has run here meanwhile, remove the file generation`

const damagedGeneration = "the file generation is damaged: files that are older than the others cannot be noticed now. A start rewrites it"

const generationCopy = 512 // where the second copy is

// sealedNumbers returns n numbers with a seal; nil when they are missing or damaged.
func sealedNumbers(b []byte, at, n int) (numbers []uint64) {
	if len(b) < at+8*n+8 {
		return nil
	}
	b = b[at : at+8*n+8]
	for i := range n + 1 {
		numbers = append(numbers, binary.BigEndian.Uint64(b[8*i:]))
	}
	if numbers[n] != xxhash.Sum64(b[:8*n]) {
		return nil
	}
	return numbers[:n]
}

func sealNumbers(numbers ...uint64) (b []byte) {
	for _, n := range numbers {
		b = binary.BigEndian.AppendUint64(b, n)
	}
	return binary.BigEndian.AppendUint64(b, xxhash.Sum64(b))
}

// write writes DIR/generation.
func (g *generation) write(sync bool) error {
	record := sealNumbers(g.opening.now, g.opening.next, g.control.now, g.control.next)
	both := make([]byte, generationCopy, generationCopy+len(record))
	copy(both, record)
	return writeInPlace(filepath.Join(g.dir, generationFile), append(both, record...), sync)
}

const synced = true

// writeInPlace writes a file in place. It creates one that does not exist.
func writeInPlace(path string, b []byte, sync bool) error {
	isNew := !durable.Exists(path)
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.WriteAt(b, 0)
	if err == nil && sync {
		err = unix.Fdatasync(int(f.Fd()))
	}
	if err = errors.Join(err, f.Close()); err == nil && isNew {
		err = durable.SyncPath(filepath.Dir(path))
	}
	return err
}

// changing notes what the sum of the control data will be. When it returns nil, the change may be committed.
func (g *generation) changing(sum uint64) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.control.next = sum
	return g.write(synced)
}

// changed notes that the change was committed. It need not be on disk: until it is, an older control.db passes too.
func (g *generation) changed() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.control.now = g.control.next
	if err := g.write(!synced); err != nil {
		g.log.Warn("if somebody puts back an older control.db, that is not noticed now", "error", err)
	}
}

// advance gives the directory and its parts the number of another opening. On a full disk the old one stays.
func (g *generation) advance(stampIndex func(number uint64) error) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	var err error
	if g.opening.next != g.opening.now { // an advance was cut off: no part may keep the number before
		err = g.stamp(g.opening.next, stampIndex)
	}
	if err == nil {
		err = g.stamp(rand.Uint64(), stampIndex)
	}
	if space.IsFull(err) {
		g.log.Warn("the disk is full: if somebody puts back older files, that is not noticed now", "error", err)
		return nil
	}
	return err
}

func (g *generation) stamp(number uint64, stampIndex func(number uint64) error) error {
	g.opening.next = number
	if err := g.write(synced); err != nil {
		return err
	}
	for _, part := range stampedParts {
		if err := writeInPlace(filepath.Join(g.dir, part, generationFile), sealNumbers(number), synced); err != nil {
			return err
		}
	}
	if err := stampIndex(number); err != nil {
		return err
	}
	g.opening.now = number
	return g.write(synced)
}
