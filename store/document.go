package store

import (
	"cmp"
	"context"
	"slices"
)

// DocumentKind says whose documents these are.
type DocumentKind string

// The kinds of documents. Package delivery describes their content.
const (
	Destinations   DocumentKind = "destination" // where events of a merchant are delivered to: control data
	DeliveryStates DocumentKind = "state"       // how far a destination is
	DeadLetters    DocumentKind = "letters"     // what a destination did not take
	ErasureAsks    DocumentKind = "ask"         // which destinations were told of an erasure
	Deliveries     DocumentKind = "delivery"    // attempts: lost with a repair, or when the data moves to another engine
)

// DocumentKinds are all kinds but Destinations.
var DocumentKinds = []DocumentKind{DeliveryStates, DeadLetters, ErasureAsks, Deliveries}

// IsKept reports whether documents of this kind are moved to another engine, and repaired by a repair.
func (k DocumentKind) IsKept() bool { return k != Deliveries }

// KeptDocuments returns all documents that are kept, in the order of CompareDocuments. of returns the documents of a kind.
func KeptDocuments(of func(kind DocumentKind) ([]Document, error)) (all []Document, err error) {
	for _, kind := range DocumentKinds {
		if !kind.IsKept() {
			continue
		}
		docs, err := of(kind)
		if err != nil {
			return nil, err
		}
		all = append(all, docs...)
	}
	slices.SortFunc(all, CompareDocuments)
	return all, nil
}

// MaxDestinations bounds the destinations of a merchant.
const MaxDestinations = 50

// Document is a small record of a part of the service. The engine does not look into its content.
type Document struct {
	Kind     DocumentKind `json:"kind"`
	Merchant MerchantID   `json:"merchantId"` // empty: the service's own
	ID       string       `json:"id"`         // printable ASCII
	Content  []byte       `json:"content"`    // nil: there is no such document
}

// DocumentUpdate replaces the content of a document, nil when there is none, by another one, nil to delete it. The entry
// goes to the audit log. An engine may call it more than once. After an error nothing is changed.
type DocumentUpdate func(content []byte) (replaced []byte, about AuditEntry, err error)

// Documents is the part of an engine that keeps destinations, and documents of the other kinds. Those of a merchant go when
// it is deleted.
type Documents interface {
	// Destination returns a destination of a merchant. KindNotFound: document.
	Destination(ctx context.Context, m MerchantID, id string) (Document, error)
	// Destinations returns the destinations of a merchant or of all when it is empty, in the order of their ids.
	Destinations(ctx context.Context, m MerchantID) ([]Document, error)
	// UpdateDestination changes a destination as a change of control data. KindNotFound: merchant. KindLimited: the
	// merchant has MaxDestinations.
	UpdateDestination(ctx context.Context, m MerchantID, id string, update DocumentUpdate) error
	// ChangedDestinations returns the destinations that were changed since the last call, on any node, as they are now:
	// without content if they were deleted. In the first call, since is 0: all destinations. Afterwards it is the upTo of
	// the previous call.
	ChangedDestinations(ctx context.Context, since int64) (changed []Document, upTo int64, err error)

	// Document returns a document. KindNotFound: document.
	Document(ctx context.Context, kind DocumentKind, m MerchantID, id string) (Document, error)
	// Documents returns the documents of a merchant or all and the service's own when it is empty, in the order of
	// their ids. With under, these are those whose ids begin with it and a slash. Damaged ones are left out.
	Documents(ctx context.Context, kind DocumentKind, m MerchantID, under string) ([]Document, error)
	// PutDocuments replaces documents, and deletes those without content, all in one transaction and without an entry
	// in the audit log. It leaves out documents of merchants that do not exist.
	PutDocuments(ctx context.Context, documents []Document) error
}

// CompareDocuments orders documents by kind, merchant and id.
func CompareDocuments(a, b Document) int {
	return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Merchant, b.Merchant), cmp.Compare(a.ID, b.ID))
}
