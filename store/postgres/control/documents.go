package control

import (
	"context"
	"strings"

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

// ReadDocuments implements rules.Driver.
func (d Driver) ReadDocuments(ctx context.Context, kind store.DocumentKind, m *store.MerchantID, id string) (docs []store.Document, err error) {
	where, args := " AND kind = $1", []any{string(kind)}
	if m != nil {
		owner, ok := OwnerOf(*m)
		if !ok {
			return nil, ctx.Err()
		}
		where, args = where+" AND merchant = $2", append(args, owner)
	}
	switch {
	case strings.HasSuffix(id, "/"):
		where, args = where+" AND starts_with(id, $3)", append(args, id)
	case id != "":
		where, args = where+" AND id = $3", append(args, id)
	}
	err = d.db.Read(ctx, func(tx pgx.Tx) (err error) {
		docs, err = DocumentsIn(ctx, tx, where+` ORDER BY merchant, id COLLATE "C"`, args...)
		return err
	})
	return docs, err
}

func DocumentsIn(ctx context.Context, tx pgx.Tx, where string, args ...any) (docs []store.Document, err error) {
	return conn.CollectRows(ctx, tx, func(d *store.Document) []any { return []any{&d.Kind, &d.Merchant, &d.ID, &d.Content} },
		"SELECT kind, coalesce(nullif(merchant, '00000000-0000-0000-0000-000000000000')::text, ''), id, content FROM document WHERE true"+where, args...)
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
