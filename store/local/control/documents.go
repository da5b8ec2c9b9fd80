package control

import (
	"bytes"
	"context"
	"iter"
	"strings"

	bolt "go.etcd.io/bbolt"

	"mtagd/store"
	"mtagd/store/rules"
)

// inDocuments is the bucket of documents: kind, "/", merchant id, "/", id → content. Only destinations are records of
// package rules.
const inDocuments = "documents"

func documentKey(kind store.DocumentKind, m store.MerchantID, id string) string {
	return string(kind) + "/" + string(m) + "/" + id
}

// parseDocument returns the document of a key, without its content.
func parseDocument(key string) store.Document {
	kind, rest, _ := strings.Cut(key, "/")
	merchant, id, _ := strings.Cut(rest, "/")
	return store.Document{Kind: store.DocumentKind(kind), Merchant: store.MerchantID(merchant), ID: id}
}

// readDocument reads a record of the bucket; nil: there is none.
func readDocument(key string, sealed []byte) (store.Document, error) {
	doc := parseDocument(key)
	if sealed == nil {
		return doc, store.NotFound("document")
	}
	content, _, ok := unseal(inDocuments, key, sealed)
	if !ok {
		return doc, damaged(inDocuments, key)
	}
	doc.Content = bytes.Clone(content)
	return doc, nil
}

// ReadDocuments implements rules.Driver.
func (d driver) ReadDocuments(ctx context.Context, kind store.DocumentKind, m *store.MerchantID, id string) (docs []store.Document, err error) {
	prefix, one := string(kind)+"/", id != "" && !strings.HasSuffix(id, "/")
	if m != nil {
		prefix = documentKey(kind, *m, id)
	}
	err = d.viewDocuments(ctx, func(b *bolt.Bucket) error {
		for key, value := range eachWith(b, prefix) {
			doc, err := readDocument(string(key), value)
			switch {
			case one && string(key) != prefix: // another id begins with this one
			case err == nil:
				docs = append(docs, doc)
			case one:
				return err
			}
			if err := ctx.Err(); err != nil { // a damaged one was logged at the start
				return err
			}
		}
		return nil
	})
	return docs, err
}

// eachWith returns the records whose key has a prefix.
func eachWith(b *bolt.Bucket, prefix string) iter.Seq2[[]byte, []byte] {
	return func(yield func(key, value []byte) bool) {
		c := b.Cursor()
		for key, value := c.Seek([]byte(prefix)); bytes.HasPrefix(key, []byte(prefix)) && yield(key, value); key, value = c.Next() {
		}
	}
}

func (d *Data) viewDocuments(ctx context.Context, read func(b *bolt.Bucket) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	return d.db.View(func(tx *bolt.Tx) error { return read(tx.Bucket([]byte(inDocuments))) })
}

// PutDocuments implements store.Documents.
func (d *Data) PutDocuments(ctx context.Context, docs []store.Document) error {
	return d.change(ctx, func(rules.Turn) (c rules.Change, err error) {
		err = d.viewDocuments(ctx, func(b *bolt.Bucket) error {
			for _, doc := range docs {
				key := documentKey(doc.Kind, doc.Merchant, doc.ID)
				_, readErr := readDocument(key, b.Get([]byte(key)))
				damaged := readErr != nil && store.KindOf(readErr) != store.KindNotFound // it stays as it is
				if !damaged && (doc.Merchant == "" || d.HasMerchant(doc.Merchant)) {
					c.Records = append(c.Records, rules.Record{Kind: inDocuments, Key: key, Value: doc.Content})
				}
			}
			return nil
		})
		return c, err
	}, func([]rules.Record) error { return nil }) // they are not in memory
}

// documentsOf returns the writes that delete the documents of the merchants that a change deletes.
func documentsOf(tx *bolt.Tx, c rules.Change) (gone []rules.Record) {
	for _, r := range c.Records {
		if r.Kind != rules.Merchants || r.Value != nil {
			continue
		}
		for _, kind := range store.DocumentKinds {
			for key := range eachWith(tx.Bucket([]byte(inDocuments)), documentKey(kind, store.MerchantID(r.Key), "")) {
				gone = append(gone, rules.Record{Kind: inDocuments, Key: string(key)})
			}
		}
	}
	return gone
}
