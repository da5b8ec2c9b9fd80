package local

import (
	"bufio"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// adviseLogs tells the system not to read ahead in the mapped files that Badger appends to: value logs, and the logs of
// memtables. Linux takes the page faults of appending for sequential reading, reads ahead in folios that grow from
// one to the next up to the device's limit, and later writes a folio as a whole: to sync 10 KB may then write a
// megabyte. Badger gives no hold of its mappings, so they are looked up by the names of their files.
func adviseLogs() error {
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
