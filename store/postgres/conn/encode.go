package conn

import (
	"encoding/binary"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgtype"
)

// encodeFast makes a connection encode the arrays of each flush directly. Without it, pgx asks each uuid for its text, and
// looks for an encoding of each element: that took a third of a node's processor time.
func encodeFast(m *pgtype.Map) {
	m.TryWrapEncodePlanFuncs = append([]pgtype.TryWrapEncodePlanFunc{wrapArray}, m.TryWrapEncodePlanFuncs...)
}

func wrapArray(value any) (plan pgtype.WrappedEncodePlanNextSetter, next any, ok bool) {
	switch v := value.(type) {
	case uuid.UUID:
		return &uuidPlan{}, [16]byte(v), true
	case []uuid.UUID:
		return &arrayPlan[uuid.UUID]{element: pgtype.UUIDOID, bytes: func(u *uuid.UUID) []byte { return u[:] }}, pgtype.FlatArray[[16]byte]{}, true
	case [][]byte:
		return &arrayPlan[[]byte]{element: pgtype.ByteaOID, bytes: func(b *[]byte) []byte { return *b }}, pgtype.FlatArray[[]byte]{}, true
	}
	return nil, nil, false
}

// uuidPlan encodes a uuid.UUID.
type uuidPlan struct{ next pgtype.EncodePlan }

func (p *uuidPlan) SetNext(next pgtype.EncodePlan) { p.next = next }

func (p *uuidPlan) Encode(value any, buf []byte) ([]byte, error) {
	return p.next.Encode([16]byte(value.(uuid.UUID)), buf)
}

// arrayPlan encodes a slice as an array in PostgreSQL's binary format: the number of dimensions, whether there are nulls,
// the type of the elements, the length and the first index; then the length of each element and its bytes.
type arrayPlan[T any] struct {
	element uint32 // OID of its type
	bytes   func(*T) []byte
}

// SetNext implements pgtype.WrappedEncodePlanNextSetter. That there is a next plan shows that the parameter is an array.
func (p *arrayPlan[T]) SetNext(pgtype.EncodePlan) {}

func (p *arrayPlan[T]) Encode(value any, buf []byte) ([]byte, error) {
	all := value.([]T)
	if all == nil {
		return nil, nil
	}
	if len(all) == 0 {
		return binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint64(buf, 0), p.element), nil
	}
	buf = binary.BigEndian.AppendUint32(buf, 1)
	buf = binary.BigEndian.AppendUint32(buf, 0)
	buf = binary.BigEndian.AppendUint32(buf, p.element)
	buf = binary.BigEndian.AppendUint32(buf, uint32(len(all)))
	buf = binary.BigEndian.AppendUint32(buf, 1)
	for i := range all {
		b := p.bytes(&all[i])
		buf = binary.BigEndian.AppendUint32(buf, uint32(len(b)))
		buf = append(buf, b...)
	}
	return buf, nil
}
