package boltfile

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"mtagd/store/testenv"
)

// On a full disk nothing can be written, and a file must still open.
func TestOpeningAnExistingFileWritesNothing(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.db")
	reopened := func(buckets ...[]byte) []byte {
		t.Helper()
		db, err := Open(path, "1", buckets...)
		testenv.Check(t, err)
		testenv.Check(t, db.Close())
		content, err := os.ReadFile(path)
		testenv.Check(t, err)
		return content
	}
	created := reopened([]byte("things"))
	if !bytes.Equal(reopened([]byte("things")), created) {
		t.Error("opening an existing file has changed it")
	}
	if bytes.Equal(reopened([]byte("things"), []byte("more")), created) {
		t.Error("a missing bucket was not created")
	}
}
