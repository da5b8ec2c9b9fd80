package delivery

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
)

// Keyring is the keys of the installation, which encrypt the secrets of destinations by AES-256-GCM. They are in a file of
// their own: one key a line, its id and 32 bytes in base64; the first one encrypts. All nodes of a database need the same
// file.
type Keyring struct {
	path string
	mu   sync.RWMutex // guards keys
	keys []key
}

type key struct {
	id   string
	aead cipher.AEAD
}

// sealed is a secret that is encrypted.
type sealed struct {
	Key   string    `json:"key"`
	Box   []byte    `json:"box"`            // nonce and ciphertext
	Until time.Time `json:"until,omitzero"` // the secret was replaced, and is valid until then
}

// OpenKeyring reads the key file, and makes it if it is not there.
func OpenKeyring(path string) (*Keyring, error) {
	k := &Keyring{path: path}
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		return k, k.Rotate()
	}
	keys, err := readKeys(path)
	k.keys = keys
	return k, err
}

func readKeys(path string) (keys []key, err error) {
	text, err := os.ReadFile(path)
	info, missing := os.Stat(path)
	if err := errors.Join(err, missing); err != nil {
		return nil, err
	}
	if info.Mode().Perm()&0o077 != 0 {
		return nil, fmt.Errorf("%s must be readable by its owner alone: chmod 600", path)
	}
	for line := range strings.Lines(string(text)) {
		id, encoded, ok := strings.Cut(strings.TrimSpace(line), " ")
		raw, err := base64.StdEncoding.DecodeString(encoded)
		if !ok || err != nil || len(raw) != 32 {
			return nil, fmt.Errorf("%s is not a file of keys: %s", path, adviceKeys) // without the line
		}
		aead, err := newAEAD(raw)
		if err != nil {
			return nil, err
		}
		keys = append(keys, key{id, aead})
	}
	if len(keys) == 0 {
		return nil, fmt.Errorf("%s has no key: %s", path, adviceKeys)
	}
	return keys, nil
}

const adviceKeys = "put a copy of the right one back. If there is none, remove the file, start, and set the secrets of all destinations again"

func newAEAD(raw []byte) (cipher.AEAD, error) {
	block, err := aes.NewCipher(raw)
	if err != nil {
		return nil, err
	}
	return cipher.NewGCMWithRandomNonce(block)
}

// Rotate puts a new key before the others. Secrets that others have encrypted can still be read.
func (k *Keyring) Rotate() error {
	var raw [32]byte
	_, _ = rand.Read(raw[:]) // never fails
	id := strings.ToLower(rand.Text()[:8])
	aead, err := newAEAD(raw[:])
	if err != nil {
		return err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	old, err := os.ReadFile(k.path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	text := id + " " + base64.StdEncoding.EncodeToString(raw[:]) + "\n" + string(old)
	if err := writeFile(k.path, text); err != nil {
		return err
	}
	k.keys = append([]key{{id, aead}}, k.keys...)
	return nil
}

// writeFile replaces a file that only its owner may read. It is on disk, or as before.
func writeFile(path, text string) error {
	f, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*") // mode 0600
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	if err = errors.Join(err, f.Sync(), f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// current returns the keys; the first one encrypts.
func (k *Keyring) current() []key {
	k.mu.RLock()
	defer k.mu.RUnlock()
	return k.keys
}

// seal encrypts a secret. It can only be opened for the same place, such as "destination/signing".
func (k *Keyring) seal(place, secret string) sealed {
	by := k.current()[0]
	return sealed{Key: by.id, Box: by.aead.Seal(nil, nil, []byte(secret), []byte(place))}
}

var errNoKey = errors.New("a secret cannot be read: the key file does not have its key. Set the secrets again, or put the right key file back")

func (k *Keyring) open(place string, s sealed) (string, error) {
	with := func(of key) bool { return of.id == s.Key }
	keys := k.current()
	i := slices.IndexFunc(keys, with)
	if i < 0 { // another node has rotated the keys
		var err error
		if keys, err = readKeys(k.path); err != nil {
			return "", errNoKey
		}
		k.mu.Lock()
		k.keys = keys
		k.mu.Unlock()
		if i = slices.IndexFunc(keys, with); i < 0 {
			return "", errNoKey
		}
	}
	text, err := keys[i].aead.Open(nil, nil, s.Box, []byte(place))
	if err != nil {
		return "", errNoKey
	}
	return string(text), nil
}
