// Package durable changes files so that a power cut leaves the old state or the new one.
package durable

import (
	"errors"
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

// ReplaceFile replaces a file, or creates it, so that after a power cut it is the old or the new one.
func ReplaceFile(path string, content []byte) error {
	f, err := os.OpenFile(path+".new", os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return errors.Join(err, os.Remove(path+".new"))
	}
	return errors.Join(os.Rename(path+".new", path), SyncPath(filepath.Dir(path)))
}
