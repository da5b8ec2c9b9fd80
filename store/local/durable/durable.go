// Package durable changes files: a power cut leaves the old state or the new one. Callers of Remove sync the directory.
package durable

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
)

// SyncPath syncs a file or directory.
func SyncPath(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// NewSuffix ends the name of a file that is being written. The complete file is renamed, and replaces the old one.
const NewSuffix = ".new"

// ReplaceFile replaces a file, or creates it, so that after a power cut it is the old or the new one.
func ReplaceFile(path string, content []byte) error {
	return Replace(path, func(f *os.File) error {
		_, err := f.Write(content)
		return err
	})
}

// Replace is ReplaceFile for content that write writes to the new file.
func Replace(path string, write func(f *os.File) error) error {
	f, err := os.OpenFile(path+NewSuffix, os.O_CREATE|os.O_TRUNC|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	if err = write(f); err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return errors.Join(err, os.Remove(path+NewSuffix))
	}
	return errors.Join(os.Rename(path+NewSuffix, path), SyncPath(filepath.Dir(path)))
}

// Exists reports whether there is a file or directory.
func Exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// Remove removes a file, if there is one.
func Remove(path string) error {
	if err := os.Remove(path); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
