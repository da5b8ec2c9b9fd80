package store

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base32"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"strings"
)

// A credential is the text of an API key, of a merchant's secret, of a session or of a link. Its owner sees it once:
//
//	prefix (4) + id (12) + secret (32) + checksum (7)
//
// The parts are in lower-case base32, so that a double click selects the whole text. The checksum detects typing errors
// without a look-up. Only the id and a SHA-256 of the secret are stored: a secret of 160 random bits needs no slower hash.

const (
	credentialIDLen = 12 // 60 bits
	secretLen       = 32 // 160 bits
	checksumLen     = 7  // CRC-32 of id and secret
)

const credentialAlphabet = "abcdefghijklmnopqrstuvwxyz234567"

var credentialEncoding = base32.NewEncoding(credentialAlphabet).WithPadding(base32.NoPadding)

// newCredential makes a random credential. hash is the SHA-256 of its secret.
func newCredential(prefix string) (id string, hash []byte, text string) {
	random := strings.ToLower(rand.Text() + rand.Text()) // 26 base32 characters each
	body := random[:credentialIDLen+secretLen]
	sum := sha256.Sum256([]byte(body[credentialIDLen:]))
	return body[:credentialIDLen], sum[:], prefix + body + checksum(body)
}

func checksum(s string) string {
	return credentialEncoding.EncodeToString(binary.BigEndian.AppendUint32(nil, crc32.ChecksumIEEE([]byte(s))))
}

// parseCredential returns the id and the secret in a text, or an error when the text is malformed. what names what the
// text should be.
func parseCredential(prefix, text, what string) (id, secret string, err error) {
	body, ok := strings.CutPrefix(text, prefix)
	if !ok || len(body) != credentialIDLen+secretLen+checksumLen {
		return "", "", fmt.Errorf("store: not %s", what)
	}
	body, sum := body[:credentialIDLen+secretLen], body[credentialIDLen+secretLen:]
	if checksum(body) != sum || strings.Trim(body, credentialAlphabet) != "" {
		return "", "", fmt.Errorf("store: %s with a wrong checksum", what)
	}
	return body[:credentialIDLen], body[credentialIDLen:], nil
}

// hashes reports, in constant time, whether hash is the SHA-256 of a secret.
func hashes(secret string, hash []byte) bool {
	sum := sha256.Sum256([]byte(secret))
	return subtle.ConstantTimeCompare(sum[:], hash) == 1
}
