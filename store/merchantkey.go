package store

import (
	"strings"

	"github.com/google/uuid"
)

// MerchantKey is a merchant's id as the 16 bytes of its UUID.
type MerchantKey [16]byte

// NewMerchantKey converts an id. KindNotFound: the id is not a UUID as ID returns it, so no merchant has it.
func NewMerchantKey(id MerchantID) (MerchantKey, error) {
	u, err := uuid.Parse(string(id))
	if err != nil || len(id) != 36 || strings.ToLower(string(id)) != string(id) { // uuid.Parse takes other forms too
		return MerchantKey{}, NotFound("merchant")
	}
	return MerchantKey(u), nil
}

// ID returns the merchant's id.
func (m MerchantKey) ID() MerchantID { return MerchantID(uuid.UUID(m).String()) }
