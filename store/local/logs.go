package local

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// stopReadAhead tells the system not to read ahead in the mapped files that Badger appends to: value logs, and the logs of
// memtables. Linux takes the page faults of appending for sequential reading, reads ahead in folios that grow from
// one to the next up to the device's limit, and later writes a folio as a whole: to sync 10 KB may then write a
// megabyte. Badger gives no hold of its mappings, so they are looked up by the names of their files.
func stopReadAhead() error {
	maps, err := os.Open("/proc/self/maps")
	if err != nil {
		return err
	}
	defer maps.Close()
	lines := bufio.NewScanner(maps)
	for lines.Scan() {
		line := lines.Text()
		if !strings.HasSuffix(line, ".vlog") && !strings.HasSuffix(line, ".mem") {
			continue
		}
		var start, end uintptr
		if _, err := fmt.Sscanf(line, "%x-%x ", &start, &end); err != nil {
			return fmt.Errorf("/proc/self/maps: %w", err)
		}
		// Where Badger has closed the file meanwhile, this advises nobody, or another for whom it is only slower.
		if _, _, errno := unix.Syscall(unix.SYS_MADVISE, start, end-start, unix.MADV_RANDOM); errno != 0 && errno != unix.ENOMEM {
			return fmt.Errorf("madvise: %w", errno)
		}
	}
	return lines.Err()
}

// mendLogs prepares the logs in events/, which may not exist yet, for Badger to open them.
//
// A kill at the wrong moment leaves an empty file, which Badger refuses.
//
// Badger ends the newest value log at the first entry that it cannot read. That is meant for one that was not written
// to its end, but were it one that the disk has damaged, all that were acknowledged after it would go, too. So an
// empty value log is put behind it. What is not written to its end nobody refers to.
func mendLogs(dir string) error {
	files, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	newest := 0
	for _, f := range files {
		ext := filepath.Ext(f.Name())
		if ext != ".vlog" && ext != ".mem" {
			continue
		}
		info, err := f.Info()
		if err != nil {
			return err
		}
		if info.Size() == 0 {
			if err := os.Remove(filepath.Join(dir, f.Name())); err != nil {
				return err
			}
			continue
		}
		if ext == ".vlog" {
			n, err := strconv.Atoi(strings.TrimSuffix(f.Name(), ext))
			if err != nil {
				return err
			}
			newest = max(newest, n)
		}
	}
	if newest == 0 {
		return nil
	}
	header := make([]byte, valueLogHeader)
	return os.WriteFile(filepath.Join(dir, fmt.Sprintf("%06d.vlog", newest+1)), header, 0o600)
}

// valueLogHeader is the size of a value log without entries: the number of the key that it is encrypted with, 0 for
// none, and an initialisation vector, in bytes.
const valueLogHeader = 8 + 12
