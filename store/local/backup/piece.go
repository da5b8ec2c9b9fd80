package backup

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"

	"filippo.io/age"
	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"
)

// A piece has up to pieceSize bytes: this bounds the memory of backup and restore. A piece that claims to have more than
// maxPiece is not decompressed.
const (
	pieceSize = 4 << 20
	maxPiece  = 4 * pieceSize
)

// Piece is an object of a point. It may have been written by an older point.
type Piece struct {
	Name   string `json:"name"`
	Size   int    `json:"size"`   // bytes, as stored
	SHA256 string `json:"sha256"` // of the object as stored
	Plain  string `json:"plain"`  // SHA-256 before compression and encryption
}

func sum(b []byte) string {
	h := sha256.Sum256(b)
	return hex.EncodeToString(h[:])
}

// pieces packs and unpacks pieces. It is for one goroutine.
type pieces struct {
	recipients []age.Recipient // empty: do not encrypt
	identities []age.Identity
	encoder    *zstd.Encoder
	decoder    *zstd.Decoder
}

func newPieces(recipients []age.Recipient, identities []age.Identity) (*pieces, error) {
	encoder, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1))
	if err != nil {
		return nil, err
	}
	decoder, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(maxPiece))
	return &pieces{recipients, identities, encoder, decoder}, err
}

func (p *pieces) close() { p.decoder.Close() }

// pack returns the stored form of a piece.
func (p *pieces) pack(plain []byte) ([]byte, error) {
	packed := p.encoder.EncodeAll(plain, nil)
	if len(p.recipients) == 0 {
		return packed, nil
	}
	var sealed bytes.Buffer
	w, err := age.Encrypt(&sealed, p.recipients...)
	if err != nil {
		return nil, err
	}
	_, err = w.Write(packed)
	err = errors.Join(err, w.Close())
	return sealed.Bytes(), err
}

// ErrNoIdentity is the error for an encrypted point that is read without an identity.
var ErrNoIdentity = errors.New("the point is encrypted: an identity is needed to read it")

// read gets a piece and checks it. Without an identity, it returns ErrNoIdentity for an encrypted piece that is as it was
// written.
func (p *pieces) read(ctx context.Context, d Destination, piece Piece, encrypted bool) ([]byte, error) {
	stored, err := d.Get(ctx, piece.Name, int64(piece.Size)+1) // one more: it must not be longer
	switch {
	case errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.EIO):
		return nil, &DamagedError{err, piece.Name}
	case err != nil:
		return nil, err
	case len(stored) != piece.Size || sum(stored) != piece.SHA256:
		return nil, &DamagedError{fmt.Errorf("%s is damaged: its checksum is wrong", piece.Name), piece.Name}
	}
	if encrypted {
		if len(p.identities) == 0 {
			return nil, ErrNoIdentity
		}
		r, err := age.Decrypt(bytes.NewReader(stored), p.identities...)
		if err == nil {
			stored, err = io.ReadAll(r)
		}
		if err != nil {
			return nil, fmt.Errorf("%s cannot be decrypted: %w", piece.Name, err)
		}
	}
	plain, err := p.decoder.DecodeAll(stored, nil)
	if err == nil && sum(plain) != piece.Plain {
		err = errors.New("its checksum is wrong")
	}
	if err != nil {
		return nil, &DamagedError{fmt.Errorf("%s is damaged: %w", piece.Name, err), piece.Name}
	}
	return plain, nil
}
