package rules

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"mtagd/store"
)

// destinationKey is the key of a destination's record.
func destinationKey(m store.MerchantID, id string) string { return string(m) + "/" + id }

func decodeDestination(key string, value []byte) ([]byte, error) {
	if !strings.Contains(key, "/") {
		return nil, errors.New("has no merchant in its key")
	}
	return bytes.Clone(value), nil
}

func destination(key string, content []byte) store.Document {
	m, id, _ := strings.Cut(key, "/")
	return store.Document{Kind: store.Destinations, Merchant: store.MerchantID(m), ID: id, Content: content}
}

func (d *Data) setDestination(key string, content []byte) {
	d.state.destinations[key] = content
	d.noteDestination(key)
}

func (d *Data) removeDestination(key string) {
	delete(d.state.destinations, key)
	d.noteDestination(key)
}

// noteDestination numbers the changes of destinations, for ChangedDestinations.
func (d *Data) noteDestination(key string) {
	d.destinationChanges++
	d.changedDestinations[key] = d.destinationChanges
}

// Destination is store.Documents.Document for a destination.
func (d *Data) Destination(ctx context.Context, m store.MerchantID, id string) (store.Document, error) {
	return viewed(ctx, d, func(s *State, _ time.Time) (store.Document, error) {
		key := destinationKey(m, id)
		content, err := find(s.destinations, key, "document")
		return destination(key, content), err
	})
}

// Destinations is store.Documents.Documents for destinations.
func (d *Data) Destinations(ctx context.Context, m store.MerchantID) ([]store.Document, error) {
	docs, err := viewed(ctx, d, func(s *State, _ time.Time) (docs []store.Document, _ error) {
		for key, content := range s.destinations {
			if doc := destination(key, content); m == "" || doc.Merchant == m {
				docs = append(docs, doc)
			}
		}
		return docs, nil
	})
	store.Sort(docs, store.CompareDocuments)
	return docs, err
}

// UpdateDestination implements store.Documents.
func (d *Data) UpdateDestination(ctx context.Context, m store.MerchantID, id string, update store.DocumentUpdate) error {
	return d.update(ctx, func(c *change) error {
		if _, err := d.state.merchant(m); err != nil {
			return err
		}
		key := destinationKey(m, id)
		old, err := find(d.state.destinations, key, "document")
		if err != nil && store.KindOf(err) != store.KindNotFound {
			return err
		}
		content, about, err := update(bytes.Clone(old))
		if err != nil || bytes.Equal(content, old) {
			return err
		}
		if old == nil && d.state.destinationsOf(m) >= store.MaxDestinations {
			return store.Limited("destination", "cannot be created: the merchant has %d, which is the limit. Delete one first", store.MaxDestinations)
		}
		c.write(Destinations, key, content)
		c.audit(about)
		return nil
	})
}

// ChangedDestinations implements store.Documents. It numbers changes as this machine has heard of them.
func (d *Data) ChangedDestinations(ctx context.Context, since int64) (changed []store.Document, upTo int64, err error) {
	err = d.look(ctx, func(s *State) error {
		if upTo = d.destinationChanges; upTo == since {
			return nil
		}
		for key, at := range d.changedDestinations {
			if at > since {
				changed = append(changed, destination(key, s.destinations[key])) // nil: it was deleted
			}
		}
		return nil
	})
	return changed, upTo, err
}

func (s *State) destinationsOf(m store.MerchantID) (n int) {
	for key := range s.destinations {
		if destination(key, nil).Merchant == m {
			n++
		}
	}
	return n
}

// Document implements store.Documents.
func (d *Data) Document(ctx context.Context, kind store.DocumentKind, m store.MerchantID, id string) (store.Document, error) {
	docs, err := d.ofMerchants(d.driver.ReadDocuments(ctx, kind, &m, id))
	if err == nil && len(docs) == 0 {
		err = store.NotFound("document")
	}
	if err != nil {
		return store.Document{}, err
	}
	return docs[0], nil
}

// Documents implements store.Documents.
func (d *Data) Documents(ctx context.Context, kind store.DocumentKind, m store.MerchantID, under string) ([]store.Document, error) {
	of := &m
	if under != "" {
		under += "/"
	}
	if m == "" {
		of = nil
	}
	return d.ofMerchants(d.driver.ReadDocuments(ctx, kind, of, under))
}

// ofMerchants leaves out documents of merchants that were deleted: a driver may delete them later.
func (d *Data) ofMerchants(docs []store.Document, err error) ([]store.Document, error) {
	return slices.DeleteFunc(docs, func(doc store.Document) bool { return doc.Merchant != "" && !d.HasMerchant(doc.Merchant) }), err
}

// HasMerchant reports whether there is a merchant.
func (d *Data) HasMerchant(id store.MerchantID) bool {
	d.mu.RLock()
	defer d.mu.RUnlock()
	_, found := d.state.merchants[id]
	return found
}
