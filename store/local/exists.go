package local

import (
	"errors"
	"io/fs"
	"os"
)

// Contents is what a data directory contains, as far as Inspect can tell by its file names.
type Contents uint8

// What Inspect finds.
const (
	NoDirectory Contents = iota // the directory does not exist
	Nothing                     // the directory is empty
	OtherFiles                  // it contains files, but no control data
	ControlData                 // it contains control data
)

// Inspect tells what a data directory contains, without opening or creating anything. Open and OpenControl create what is
// missing; a caller that must not create a new store by mistake inspects the directory first.
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
		case "lost+found": // the root of an empty ext4 file system
		default:
			found = OtherFiles
		}
	}
	return found, nil
}
