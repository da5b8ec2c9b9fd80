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
	"syscall"

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

// repairLogs prepares the logs in Badger's directory for opening, and returns how many are of memtables. There are three
// repairs:
//
//   - It removes logs that are empty or have no data. A kill at the wrong moment leaves one. Badger refuses to open an empty
//     one, and the other has nothing either. Some file systems report no blocks before they have written the data, so the
//     file must also be one hole.
//   - It adds a value log without entries, which is then the newest. Badger truncates the newest value log at the first
//     entry that it cannot read. That is meant for an entry whose write was cut short. But if the disk has damaged an
//     entry, all acknowledged entries after it would be lost too. In a value log that is not the newest, an entry that
//     was cut short does no harm: nothing refers to it.
//   - It frees what was allocated for a value log and not used, after a kill.
func repairLogs(dir string) (memtables int, err error) {
	files, err := os.ReadDir(dir)
	if err != nil {
		return 0, err
	}
	newest := 0
	for _, f := range files {
		ext := filepath.Ext(f.Name())
		if ext != ".vlog" && ext != ".mem" {
			continue
		}
		info, err := f.Info()
		if err != nil {
			return 0, err
		}
		path := filepath.Join(dir, f.Name())
		unused := info.Size() == 0
		if info.Size() >= 2*memTableSize && allocatedBytes(info) == 0 {
			if unused, err = isHole(path); err != nil {
				return 0, err
			}
		}
		if unused {
			if err := os.Remove(path); err != nil {
				return 0, err
			}
			continue
		}
		if ext == ".mem" {
			memtables++
			continue
		}
		n, err := strconv.Atoi(strings.TrimSuffix(f.Name(), ext))
		if err != nil {
			return 0, err
		}
		newest = max(newest, n)
		if info.Size() <= newLog || allocatedBytes(info) < newLog {
			continue
		}
		if err := freeTail(path, info.Size()); err != nil {
			return 0, err
		}
	}
	if newest == 0 {
		return memtables, nil
	}
	header := make([]byte, valueLogHeader)
	return memtables, os.WriteFile(filepath.Join(dir, fmt.Sprintf("%06d.vlog", newest+1)), header, 0o600)
}

// allocatedBytes returns how many bytes a file takes on the disk.
func allocatedBytes(info fs.FileInfo) int64 { return info.Sys().(*syscall.Stat_t).Blocks * 512 }

// isHole reports whether a file has no data: all of it is one hole. It returns false where the file system cannot tell.
func isHole(path string) (bool, error) {
	f, err := os.Open(path)
	if err != nil {
		return false, err
	}
	defer f.Close()
	_, err = unix.Seek(int(f.Fd()), 0, unix.SEEK_DATA)
	return errors.Is(err, unix.ENXIO), nil
}

// freeTail frees the blocks behind the last byte of a value log that is not zero. The file's contents stay the same, as a
// hole reads as zeros.
func freeTail(path string, size int64) error {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	end := int64(newLog)
	for block := make([]byte, 64<<10); end > 0; end -= int64(len(block)) {
		if _, err := f.ReadAt(block, end-int64(len(block))); err != nil {
			return err
		}
		if used := usedLength(block); used > 0 {
			end += int64(used - len(block))
			break
		}
	}
	// An error, such as of a file system that has no holes, costs only space.
	_ = unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, end, size-end)
	return nil
}

// valueLogHeader is the size in bytes of a value log without entries: the id of its encryption key (0 for none), and an
// initialisation vector.
const valueLogHeader = 8 + 12
