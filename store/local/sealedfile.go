package local

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"mtagd/store/local/codec"
	"mtagd/store/local/durable"
)

// writeSealed writes DIR/name: JSON of a value, sealed (codec.Seal) with the name as the key.
func writeSealed(dir, name string, value any) error {
	b, err := json.Marshal(value)
	if err != nil {
		return err
	}
	return durable.ReplaceFile(filepath.Join(dir, name), codec.Seal([]byte(name), b))
}

// readSealed reads what writeSealed has written. It leaves value as it is when there is no file, or when the file is damaged:
// then it returns an error.
func readSealed(dir, name string, value any) error {
	b, err := os.ReadFile(filepath.Join(dir, name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		err = json.Unmarshal(codec.Unseal([]byte(name), b), value)
	}
	return err
}
