package journal

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

// disableReadahead disables readahead in the mapped files that Badger appends to: value logs, and the logs of memtables.
// Linux mistakes the page faults of appending for sequential reading. It then reads ahead in folios that grow up to the
// device's limit, and later writes each folio as a whole: syncing 10 KB may write a megabyte. Badger does not expose its
// mappings, so this function finds them in /proc/self/maps by the names of their files.
func disableReadahead() error {
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
		// If Badger has unmapped the file meanwhile, the call has no effect (ENOMEM), or it disables readahead for whatever
		// was mapped there since. The latter costs only speed.
		if _, _, errno := unix.Syscall(unix.SYS_MADVISE, start, end-start, unix.MADV_RANDOM); errno != 0 && errno != unix.ENOMEM {
			return fmt.Errorf("madvise: %w", errno)
		}
	}
	return lines.Err()
}

// repairLogs prepares the logs in Badger's directory for opening. The directory may not exist yet. There are two repairs:
//
//   - It removes empty logs. A kill at the wrong moment leaves one, and Badger refuses to open it.
//   - It adds a value log without entries, which is then the newest. Badger truncates the newest value log at the first
//     entry that it cannot read. That is meant for an entry whose write was cut short. But if the disk has damaged an
//     entry, all acknowledged entries after it would be lost too. In a value log that is not the newest, an entry that
//     was cut short does no harm: nothing refers to it.
func repairLogs(dir string) error {
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

// valueLogHeader is the size in bytes of a value log without entries: the id of its encryption key (0 for none), and an
// initialisation vector.
const valueLogHeader = 8 + 12
