package journal

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// precheck prepares Badger's directory for opening. Badger drops what it cannot read, deletes tables that are not listed,
// reads tables without checking them, and ends the process at some kinds of damage. So precheck reads everything that
// Badger reads while it opens, except for value logs, whose records are checked when they are read:
//
//   - It corrects a single wrong bit wherever that is. It sets a copy of the file aside first (setaside.go).
//   - Of a memtable's log with other damage it keeps every sound record, those behind the damage too (memlog.go). It sets a
//     copy aside. A log that only ends in the middle of a write is not damaged, and loses that end.
//   - It lists tables that MANIFEST does not list (manifest.go).
//   - Otherwise it fails, names the file, and changes nothing in it.
//
// After a kill or a failed write, the page cache may have what is not on the disk, and will not be written: after a write
// error Linux takes a page for written. So precheck then writes again what the last commits wrote, and syncs it, before
// anything builds on it.
func precheck(dir string, aside *setAside, log *slog.Logger) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	var tables []uint64
	var memLogs, valueLogs []string // in the order of their numbers
	for _, e := range entries {
		name := e.Name()
		id, err := strconv.ParseUint(strings.TrimSuffix(name, filepath.Ext(name)), 10, 64)
		if err != nil {
			continue
		}
		switch filepath.Ext(name) {
		case ".sst":
			tables = append(tables, id)
		case ".mem":
			memLogs = append(memLogs, filepath.Join(dir, name))
		case ".vlog":
			valueLogs = append(valueLogs, filepath.Join(dir, name))
		}
	}
	if err := checkSmallFiles(dir, aside); err != nil {
		return err
	}
	for _, path := range slices.Concat(memLogs, valueLogs) {
		if err := checkLogHeader(path, aside); err != nil {
			return err
		}
	}
	clean, err := wasClosed(dir)
	if err != nil {
		return err
	}
	unsure, err := checkTables(dir, tables, clean && len(memLogs) == 0, aside, log)
	if err != nil {
		return err
	}
	newest := true
	for _, path := range slices.Backward(memLogs) {
		empty, err := checkMemLog(path, newest, aside, log)
		if err != nil {
			return err
		}
		newest = newest && empty
	}
	if len(memLogs) == 0 {
		return nil // Badger was closed
	}
	return writeAgain(dir, unsure, memLogs, valueLogs)
}

// checkSmallFiles removes files that Badger creates again, when they are damaged: KEYREGISTRY, which has no keys, as nothing
// is encrypted, and DISCARD, statistics that Reclaim does not need.
func checkSmallFiles(dir string, aside *setAside) error {
	for name, isSound := range map[string]func([]byte) bool{
		"KEYREGISTRY": func(b []byte) bool { return len(b) == 16+12 && string(b[16:]) == "Hello Badger" },
		"DISCARD":     func(b []byte) bool { return len(b)%(1<<20) == 0 },
	} {
		path := filepath.Join(dir, name)
		b, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) || err == nil && isSound(b) {
			continue
		}
		if err != nil {
			return err
		}
		if err := aside.move(path, "it is damaged; it is created again", false); err != nil {
			return err
		}
	}
	return nil
}

// checkLogHeader corrects the id of a log's encryption key: nothing is encrypted, so it is 0.
func checkLogHeader(path string, aside *setAside) error {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	id := make([]byte, 8)
	if n, err := f.ReadAt(id, 0); err != nil && !errors.Is(err, io.EOF) {
		return err
	} else if isZero(id[:n]) {
		return nil
	}
	aside.log.Warn("the header of a log was damaged, and was corrected", "file", path)
	_, err = f.WriteAt(make([]byte, len(id)), 0)
	return errors.Join(err, f.Sync())
}

// checkMemLog corrects the log of a memtable, or keeps what is sound of it. It reports whether the log is empty. Of the newest
// log that is not, it leaves out the last transaction when its chunks are not on the disk: it was not acknowledged then.
func checkMemLog(path string, newest bool, aside *setAside, log *slog.Logger) (empty bool, err error) {
	b, err := os.ReadFile(path)
	if err != nil || len(b) < logHeader {
		return true, err
	}
	l := readMemLog(b)
	reason := ""
	if last := l.lastTransaction(); newest && len(last) > 0 {
		written, err := chunksAreWritten(filepath.Dir(path), last)
		if err != nil {
			return false, err
		}
		if !written {
			l.records = l.records[:len(l.records)-len(last)]
			reason = "the chunks of the last transaction were not written, so it was not acknowledged: it is left out"
		}
	}
	if reason == "" && !l.corrected && len(l.damage) == 0 {
		return len(l.records) == 0, nil
	}
	records, lost := l.survivors(b)
	content := append(b[:logHeader:logHeader], records...)
	switch {
	case lost > 0:
		log.Error("a log in events/ is damaged: acknowledged data is lost", "file", path, "lost_bytes", lost)
		reason = fmt.Sprintf("%d bytes cannot be read; what is behind them was kept", lost)
		return false, aside.replace(path, content, reason, true)
	case l.corrected:
		return false, aside.replace(path, content, "a wrong bit was corrected", false)
	case reason == "":
		reason = "its end cannot be read: the last transaction, which was not acknowledged, is left out"
	}
	// A kill or a power cut does that, so there is no copy.
	log.Info("the last write to a log in events/ was cut short", "file", path, "reason", reason)
	return false, aside.spare.withSpace(func() error { return ReplaceFile(path, content) })
}

// chunksAreWritten reports whether the value logs have the values of these records. It reports false only when a sector of
// one is missing: a value that is damaged was written. It corrects a single wrong bit.
func chunksAreWritten(dir string, records []logRecord) (bool, error) {
	for _, r := range records {
		if r.pointer == nil {
			continue
		}
		written, err := chunkIsWritten(filepath.Join(dir, fmt.Sprintf("%06d.vlog", r.pointer.file)), *r.pointer)
		if !written || err != nil {
			return false, err
		}
	}
	return true, nil
}

func chunkIsWritten(path string, p valuePointer) (bool, error) {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer f.Close()
	value := make([]byte, p.size)
	if _, err := f.ReadAt(value, int64(p.at)); err != nil && !errors.Is(err, io.EOF) {
		return false, err
	}
	end := len(value) - crc32.Size
	if end < 0 {
		return true, nil
	}
	sound := func() bool { return crc32.Checksum(value[:end], castagnoli) == binary.BigEndian.Uint32(value[end:]) }
	if sound() {
		return true, nil
	}
	if tryBits(value[end:], sound) || correctBit(value[:end], binary.BigEndian.Uint32(value[end:])) {
		_, err := f.WriteAt(value, int64(p.at))
		return true, errors.Join(err, f.Sync())
	}
	return !hasEmptySector(value, int(p.at)), nil
}

// unsureTail is how much of the end of a value log is written again: more than two commits.
const unsureTail = 8 << 20

// writeAgain writes what the last commits wrote again, and syncs it.
func writeAgain(dir string, tables []uint64, memLogs, valueLogs []string) error {
	for _, id := range tables {
		if err := rewrite(tablePath(dir, id), 0); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	if err := rewrite(filepath.Join(dir, "MANIFEST"), 0); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, path := range memLogs {
		if err := rewrite(path, 0); err != nil {
			return err
		}
	}
	// The newest value log may have been begun by the last commit.
	for again := 2; again > 0 && len(valueLogs) > 0; valueLogs = valueLogs[:len(valueLogs)-1] {
		path := valueLogs[len(valueLogs)-1]
		end, err := usedEnd(path, newLog)
		if err != nil {
			return err
		}
		if end <= logHeader {
			continue
		}
		if err := rewrite(path, max(0, end-unsureTail)); err != nil {
			return err
		}
		again--
	}
	return SyncPath(dir)
}

// usedEnd returns the end of the last byte of a file that is not zero. It looks only at so many bytes of the file.
func usedEnd(path string, most int64) (end int64, err error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	block := make([]byte, 64<<10)
	for end = min(info.Size(), most); end > 0; {
		from := max(0, end-int64(len(block)))
		b := block[:end-from]
		if _, err := f.ReadAt(b, from); err != nil {
			return 0, err
		}
		if used := usedLength(b); used > 0 {
			return from + int64(used), nil
		}
		end = from
	}
	return 0, nil
}
