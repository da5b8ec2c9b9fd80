package control

import (
	"context"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"mtagd/store"
	"mtagd/store/postgres/conn"
)

// OwnerOf returns the merchant of a document as the database has it; false when no merchant can have the id.
func OwnerOf(m store.MerchantID) (uuid.UUID, bool) {
	if m == "" {
		return uuid.Nil, true
	}
	return conn.KeyOf(m)
}

// Document implements store.Documents.
func (c *Control) Document(ctx context.Context, kind store.DocumentKind, m store.MerchantID, id string) (store.Document, error) {
	docs, err := c.documents(ctx, m, " AND kind = $1 AND merchant = $2 AND id = $3", string(kind), id)
	if err == nil && len(docs) == 0 {
		err = store.NotFound("document")
	}
	if err != nil {
		return store.Document{}, err
	}
	return docs[0], nil
}

// Documents implements store.Documents.
func (c *Control) Documents(ctx context.Context, kind store.DocumentKind, m store.MerchantID) ([]store.Document, error) {
	if m == "" {
		return c.documents(ctx, m, " AND kind = $1 AND $2::uuid IS NOT NULL ORDER BY merchant, id", string(kind))
	}
	return c.documents(ctx, m, ` AND kind = $1 AND merchant = $2 ORDER BY id COLLATE "C"`, string(kind))
}

// documents returns what a condition with the kind as $1 and the merchant as $2 selects.
func (c *Control) documents(ctx context.Context, m store.MerchantID, where, kind string, args ...any) (docs []store.Document, err error) {
	owner, ok := OwnerOf(m)
	if !ok {
		return nil, ctx.Err()
	}
	err = c.db.Read(ctx, func(tx pgx.Tx) (err error) {
		docs, err = DocumentsIn(ctx, tx, where, append([]any{kind, owner}, args...)...)
		return err
	})
	gone := func(doc store.Document) bool { return doc.Merchant != "" && !c.HasMerchant(doc.Merchant) }
	return slices.DeleteFunc(docs, gone), err
}

func DocumentsIn(ctx context.Context, tx pgx.Tx, where string, args ...any) (docs []store.Document, err error) {
	err = conn.Query(ctx, tx, func(rows pgx.Rows) error {
		var doc store.Document
		var m uuid.UUID
		err := rows.Scan(&doc.Kind, &m, &doc.ID, &doc.Content)
		if m != uuid.Nil {
			doc.Merchant = store.MerchantID(m.String())
		}
		docs = append(docs, doc)
		return err
	}, "SELECT kind, merchant, id, content FROM document WHERE true"+where, args...)
	return docs, err
}

// deleteDocuments deletes documents whose merchant is deleted.
func (c *Control) deleteDocuments(ctx context.Context) error {
	_, err := c.db.Pool.Exec(ctx, "DELETE FROM document WHERE merchant <> $1 AND merchant NOT IN (SELECT m.id FROM "+conn.Merchants+" m)", uuid.Nil)
	return err
}

// PutDocuments implements store.Documents.
func (c *Control) PutDocuments(ctx context.Context, docs []store.Document) error {
	var kinds, ids, goneKinds, goneIDs []string
	var owners, goneOwners []uuid.UUID
	var contents [][]byte
	last := map[[3]string]int{} // of a document that is there twice
	for i, doc := range docs {
		last[[3]string{string(doc.Kind), string(doc.Merchant), doc.ID}] = i
	}
	for i, doc := range docs {
		owner, ok := OwnerOf(doc.Merchant)
		switch {
		case last[[3]string{string(doc.Kind), string(doc.Merchant), doc.ID}] != i:
		case !ok:
		case doc.Content == nil:
			goneKinds, goneOwners, goneIDs = append(goneKinds, string(doc.Kind)), append(goneOwners, owner), append(goneIDs, doc.ID)
		default:
			kinds, owners, ids, contents = append(kinds, string(doc.Kind)), append(owners, owner), append(ids, doc.ID), append(contents, doc.Content)
		}
	}
	return c.db.RetryFor(ctx, conn.FailOverTimeout, func(ctx context.Context) error {
		return c.db.Transact(ctx, func(tx pgx.Tx) error {
			if len(goneIDs) > 0 {
				if _, err := tx.Exec(ctx, `DELETE FROM document USING unnest($1::text[], $2::uuid[], $3::text[]) AS gone(kind, merchant, id)
					WHERE document.kind = gone.kind AND document.merchant = gone.merchant AND document.id = gone.id`, goneKinds, goneOwners, goneIDs); err != nil {
					return err
				}
			}
			if len(ids) == 0 {
				return nil
			}
			_, err := tx.Exec(ctx, `INSERT INTO document (kind, merchant, id, content) SELECT kind, merchant, id, content
				FROM unnest($1::text[], $2::uuid[], $3::text[], $4::bytea[]) AS new(kind, merchant, id, content)
				WHERE merchant = $5 OR merchant IN (SELECT m.id FROM `+conn.Merchants+` m)
				ON CONFLICT (kind, merchant, id) DO UPDATE SET content = excluded.content, at = excluded.at`, kinds, owners, ids, contents, uuid.Nil)
			return err
		})
	})
}
