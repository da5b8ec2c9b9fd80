package postgres

import (
	"bytes"
	"context"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"mtagd/store"
)

const selectDocuments = "SELECT kind, merchant, id, content FROM document WHERE content IS NOT NULL"

func scanDocument(rows pgx.Rows) (doc store.Document, err error) {
	var m uuid.UUID
	err = rows.Scan(&doc.Kind, &m, &doc.ID, &doc.Content)
	if m != uuid.Nil {
		doc.Merchant = store.MerchantID(m.String())
	}
	return doc, err
}

// ownerOf returns the merchant of a document as the database has it; false when no merchant can have the id.
func ownerOf(m store.MerchantID) (uuid.UUID, bool) {
	if m == "" {
		return uuid.Nil, true
	}
	return keyOf(m)
}

// Document implements store.Documents.
func (e *engine) Document(ctx context.Context, kind store.DocumentKind, m store.MerchantID, id string) (store.Document, error) {
	docs, err := e.documents(ctx, m, " AND kind = $1 AND merchant = $2 AND id = $3", string(kind), id)
	if err == nil && len(docs) == 0 {
		err = store.NotFound("document")
	}
	if err != nil {
		return store.Document{}, err
	}
	return docs[0], nil
}

// Documents implements store.Documents.
func (e *engine) Documents(ctx context.Context, kind store.DocumentKind, m store.MerchantID) ([]store.Document, error) {
	if m == "" {
		return e.documents(ctx, m, " AND kind = $1 AND $2::uuid IS NOT NULL ORDER BY merchant, id", string(kind))
	}
	return e.documents(ctx, m, ` AND kind = $1 AND merchant = $2 ORDER BY id COLLATE "C"`, string(kind))
}

// documents returns what a condition with the kind as $1 and the merchant as $2 selects.
func (e *engine) documents(ctx context.Context, m store.MerchantID, where, kind string, args ...any) (docs []store.Document, err error) {
	owner, ok := ownerOf(m)
	if !ok {
		return nil, ctx.Err()
	}
	err = e.read(ctx, func(tx pgx.Tx) error {
		docs = nil
		return query(ctx, tx, func(rows pgx.Rows) error {
			doc, err := scanDocument(rows)
			docs = append(docs, doc)
			return err
		}, selectDocuments+where, append([]any{kind, owner}, args...)...)
	})
	return docs, err
}

// UpdateDocument implements store.Documents.
func (e *engine) UpdateDocument(ctx context.Context, kind store.DocumentKind, m store.MerchantID, id string, update store.DocumentUpdate) error {
	return e.change(ctx, func(c *change) error {
		if _, err := merchant(c.ctx, c.tx, m); err != nil {
			return err
		}
		var old []byte
		err := c.tx.QueryRow(c.ctx, "SELECT content FROM document WHERE kind = $1 AND merchant = $2 AND id = $3", string(kind), string(m), id).Scan(&old)
		if err != nil && err != pgx.ErrNoRows {
			return err
		}
		content, about, err := update(old)
		if err != nil || bytes.Equal(content, old) {
			return err
		}
		var changed int64
		if err := c.tx.QueryRow(c.ctx, "SELECT nextval('document_changed')").Scan(&changed); err != nil {
			return err
		}
		c.putDocument(store.Document{Kind: kind, Merchant: m, ID: id, Content: content}, changed)
		return c.audit(about)
	})
}

// putDocument writes a document. Without content it stays as a mark of its deletion, for the other nodes.
func (c *change) putDocument(doc store.Document, changed int64) {
	owner, _ := ownerOf(doc.Merchant)
	c.exec(`INSERT INTO document (kind, merchant, id, content, changed) VALUES ($1, $2, $3, $4, $5)
		ON CONFLICT (kind, merchant, id) DO UPDATE SET content = excluded.content, changed = excluded.changed, at = excluded.at`,
		string(doc.Kind), owner, doc.ID, doc.Content, changed)
}

// PutDocuments implements store.Documents.
func (e *engine) PutDocuments(ctx context.Context, docs []store.Document) error {
	var kinds, ids, goneKinds, goneIDs []string
	var owners, goneOwners []uuid.UUID
	var contents [][]byte
	for _, doc := range docs {
		owner, ok := ownerOf(doc.Merchant)
		switch {
		case !ok:
		case doc.Content == nil:
			goneKinds, goneOwners, goneIDs = append(goneKinds, string(doc.Kind)), append(goneOwners, owner), append(goneIDs, doc.ID)
		default:
			kinds, owners, ids, contents = append(kinds, string(doc.Kind)), append(owners, owner), append(ids, doc.ID), append(contents, doc.Content)
		}
	}
	return e.share(ctx, sharedTimeout, func(ctx context.Context) error {
		return e.transact(ctx, func(tx pgx.Tx) error {
			if len(goneIDs) > 0 {
				if _, err := tx.Exec(ctx, `DELETE FROM document USING unnest($1::text[], $2::uuid[], $3::text[]) AS gone(kind, merchant, id)
					WHERE document.kind = gone.kind AND document.merchant = gone.merchant AND document.id = gone.id`, goneKinds, goneOwners, goneIDs); err != nil {
					return err
				}
			}
			if len(ids) == 0 {
				return nil
			}
			_, err := tx.Exec(ctx, `INSERT INTO document (kind, merchant, id, content, changed) SELECT kind, merchant, id, content, 0
				FROM unnest($1::text[], $2::uuid[], $3::text[], $4::bytea[]) AS new(kind, merchant, id, content)
				WHERE merchant = $5 OR merchant IN (SELECT id FROM merchant)
				ON CONFLICT (kind, merchant, id) DO UPDATE SET content = excluded.content, at = excluded.at`, kinds, owners, ids, contents, uuid.Nil)
			return err
		})
	})
}

// ChangedDocuments implements store.Shared. Changes follow each other, so the numbers are in the order of their commits.
func (e *engine) ChangedDocuments(ctx context.Context, kind store.DocumentKind, since int64) (changed []store.Document, upTo int64, err error) {
	err = e.share(ctx, sharedTimeout, func(ctx context.Context) error {
		changed, upTo = nil, since
		return query(ctx, e.pool, func(rows pgx.Rows) error {
			var doc store.Document
			var m uuid.UUID
			err := rows.Scan(&doc.Kind, &m, &doc.ID, &doc.Content, &upTo)
			doc.Merchant = store.MerchantID(m.String())
			changed = append(changed, doc)
			return err
		}, "SELECT kind, merchant, id, content, changed FROM document WHERE kind = $1 AND changed > $2 ORDER BY changed", string(kind), since)
	})
	return slices.Clip(changed), upTo, err
}
