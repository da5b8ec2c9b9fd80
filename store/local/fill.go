package local

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"mtagd/store/local/durable"
)

// unfinishedFile is in a data directory that a restore, a repair or an import fills: it is created first and removed
// last. As long as it is there, the directory cannot be opened. It has the name of the command, and what Import adds.
const unfinishedFile = "unfinished"

// ErrNotEmpty is the error of a fill of a directory with other files.
var ErrNotEmpty = errors.New("is not empty: it must be a new directory")

// fill fills a new data directory. When do fails or is killed, the directory cannot be opened; the next fill empties it, and
// begins again.
func fill(dir, command string, do func() error) error {
	if err := fillUnfinished(dir, command, do); err != nil {
		return err
	}
	return finish(dir)
}

// fillUnfinished does what fill does before it lets the directory be opened: all is on disk.
func fillUnfinished(dir, command string, do func() error) error {
	if err := beginFill(dir, command); err != nil {
		return err
	}
	if err := do(); err != nil {
		return err
	}
	return syncAll(dir)
}

// finish lets a directory be opened.
func finish(dir string) error {
	return errors.Join(os.Remove(filepath.Join(dir, unfinishedFile)), durable.SyncPath(dir))
}

// syncAll syncs the file system of a directory.
func syncAll(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(unix.Syncfs(int(f.Fd())), f.Close())
}

func beginFill(dir, command string) error {
	if !durable.Exists(dir) { // a kill must not leave an empty one, which would be a new store
		parent, name := filepath.Split(filepath.Clean(dir))
		parent = cmp.Or(parent, ".")
		if err := os.MkdirAll(parent, 0o700); err != nil {
			return err
		}
		made, err := os.MkdirTemp(parent, name+".new-*") // nobody else's, whatever is there
		if err != nil {
			return err
		}
		if err := cmp.Or(writeMarker(made, command), os.Rename(made, dir)); err != nil {
			return err
		}
	}
	found, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	found = slices.DeleteFunc(found, func(entry fs.DirEntry) bool {
		return entry.Name() == "lost+found" || entry.Name() == unfinishedFile+".new"
	})
	marker := filepath.Join(dir, unfinishedFile)
	if again := durable.Exists(marker); len(found) > 0 && !again {
		return fmt.Errorf("%s %w", dir, ErrNotEmpty)
	}
	if err := errors.Join(writeMarker(dir, command), durable.SyncPath(filepath.Dir(dir))); err != nil {
		return err
	}
	for _, entry := range found {
		if entry.Name() != unfinishedFile {
			if err := os.RemoveAll(filepath.Join(dir, entry.Name())); err != nil {
				return err
			}
		}
	}
	return nil
}

func writeMarker(dir, command string) error {
	return durable.ReplaceFile(filepath.Join(dir, unfinishedFile), []byte(command))
}

// openFilled opens a directory that is being filled as a server does, which builds the index. Nothing is removed before
// the events were counted.
func openFilled(dir string, opt Options) (*engine, error) {
	opt.keepAll, opt.unfinished = true, true
	e, err := Open(dir, opt)
	if err != nil {
		return nil, err
	}
	return e.(*engine), nil
}

// writeCertificate writes a file below the directory of certificates.
func writeCertificate(dir, path string, content []byte) error {
	if !filepath.IsLocal(path) {
		return fmt.Errorf("a certificate has the path %q", path)
	}
	file := filepath.Join(dir, certificatesDir, path)
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		return err
	}
	return os.WriteFile(file, content, 0o600) // fill syncs it
}

// CheckFinished returns an error when a restore, a repair or an import into a data directory was cut off.
func CheckFinished(dir string) error {
	command, err := os.ReadFile(filepath.Join(dir, unfinishedFile))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	}
	if len(command) == 0 {
		return fmt.Errorf("%s is there, but empty: a restore, repair or migration into this directory has not finished. Run it again, because events are missing",
			filepath.Join(dir, unfinishedFile))
	}
	if name, _, isComplete := strings.Cut(string(command), complete); isComplete {
		return fmt.Errorf("%q into this directory has not finished: run it again", name)
	}
	return fmt.Errorf("%q into this directory has not finished: run it again, because events are missing", command)
}
