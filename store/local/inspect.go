package local

import (
	"errors"
	"io/fs"
	"os"
)

// Contents is what a data directory contains, judged by its file names.
type Contents uint8

// The results of Inspect.
const (
	NoDirectory Contents = iota // the directory does not exist
	Nothing                     // the directory is empty
	OtherFiles                  // it contains files, but no control data
	ControlData                 // it contains control data
)

// Inspect returns what a data directory contains. It opens and creates nothing. Open and OpenControl create what is
// missing, so a caller that must not create a new store by mistake calls Inspect first.
func Inspect(dir string) (Contents, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return NoDirectory, nil
	}
	if err != nil {
		return NoDirectory, err
	}
	found := Nothing
	for _, entry := range entries {
		switch entry.Name() {
		case "control.db":
			return ControlData, nil
		case "lost+found": // in the root of every ext4 file system
		default:
			found = OtherFiles
		}
	}
	return found, nil
}
