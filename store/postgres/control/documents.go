package control

import (
	"context"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"mtagd/store"
	"mtagd/store/postgres/conn"
)

// OwnerOf returns a document's merchant in the database's form; false if no merchant can have the id.
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
	return conn.CollectRows(ctx, tx, func(d *store.Document) []any { return []any{&d.Kind, &d.Merchant, &d.ID, &d.Content} },
		"SELECT kind, coalesce(nullif(merchant, '00000000-0000-0000-0000-000000000000')::text, ''), id, content FROM document WHERE true"+where, args...)
}

// deleteDocuments deletes documents whose merchant is deleted.
func (c *Control) deleteDocuments(ctx context.Context) error {
	_, err := c.db.Pool.Exec(ctx, "DELETE FROM document WHERE merchant <> $1 AND merchant NOT IN (SELECT m.id FROM "+conn.Merchants+" m)", uuid.Nil)
	return err
}

// PutDocuments implements store.Documents.
func (c *Control) PutDocuments(ctx context.Context, docs []store.Document) error {
	return c.db.RetryFor(ctx, conn.FailOverTimeout, func(ctx context.Context) error {
		return c.db.Transact(ctx, func(tx pgx.Tx) error {
			b := &pgx.Batch{}
			for _, doc := range docs {
				owner, ok := OwnerOf(doc.Merchant)
				switch {
				case !ok:
				case doc.Content == nil:
					b.Queue("DELETE FROM document WHERE kind = $1 AND merchant = $2 AND id = $3", string(doc.Kind), owner, doc.ID)
				default:
					b.Queue(`INSERT INTO document (kind, merchant, id, content) SELECT $1::text, $2::uuid, $3::text, $4::bytea
						WHERE $2 = $5 OR EXISTS (SELECT FROM record WHERE kind = 'merchants' AND id = $2::text AND body IS NOT NULL)
						ON CONFLICT (kind, merchant, id) DO UPDATE SET content = excluded.content, at = excluded.at`,
						string(doc.Kind), owner, doc.ID, doc.Content, uuid.Nil)
				}
			}
			if b.Len() == 0 {
				return nil
			}
			return tx.SendBatch(ctx, b).Close()
		})
	})
}
