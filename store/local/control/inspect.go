package control

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
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

// Inspect returns what a data directory contains. It opens and creates nothing. Open creates what is missing, so a caller
// that must not create a new store by mistake calls Inspect first. A symbolic link to control data that does not exist is
// an error: Open would create it at the link's target.
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
		case fileName, copyName: // Open takes the copy when control.db is missing
			found = ControlData
			path := filepath.Join(dir, entry.Name())
			if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
				return found, fmt.Errorf("%s is a symbolic link to a file that does not exist", path)
			} else if err != nil {
				return found, err
			}
		case "lost+found": // in the root of every ext4 file system
		default:
			found = max(found, OtherFiles)
		}
	}
	return found, nil
}
