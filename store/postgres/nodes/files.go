package nodes

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"mtagd/store"
	"mtagd/store/postgres/conn"
)

var _ store.Shared = (*Nodes)(nil)

// readFilesTimeout is short: certmagic locks its certificates against handshakes while it looks whether another node has
// renewed one.
const readFilesTimeout = 2 * time.Second

// below selects the file $1, and the files below it. The byte after / is 0.
const below = `($1 = '' OR path = $1 OR path > $1 || '/' AND path < $1 || '0')`

// Files implements store.Shared. While the node is not ready, it fails at once.
func (n *Nodes) Files(ctx context.Context, path string, content bool) (files []store.File, err error) {
	if n.ready() != nil {
		return nil, store.Unavailable("the database does not answer")
	}
	columns := "NULL::bytea"
	if content {
		columns = "content"
	}
	err = n.db.RetryFor(ctx, readFilesTimeout, func(ctx context.Context) (err error) {
		files, err = conn.CollectRows(ctx, n.db.Pool, func(f *store.File) []any { return []any{&f.Path, &f.Modified, &f.Age, &f.Content} }, "SELECT path, modified, clock_timestamp() - modified, "+columns+" FROM file WHERE "+below+" ORDER BY path", path)
		return err
	})
	return files, err
}

// PutFile implements store.Shared.
func (n *Nodes) PutFile(ctx context.Context, path string, content []byte) error {
	return n.exec(ctx, `INSERT INTO file (path, modified, content) VALUES ($1, clock_timestamp(), $2)
		ON CONFLICT (path) DO UPDATE SET modified = excluded.modified, content = excluded.content`, path, content)
}

// exec runs a statement, again while the database cannot be reached.
func (n *Nodes) exec(ctx context.Context, sql string, args ...any) error {
	return n.db.RetryFor(ctx, conn.FailOverTimeout, func(ctx context.Context) error {
		_, err := n.db.Pool.Exec(ctx, sql, args...)
		return err
	})
}

// ShortKeys implements store.Shared.
func (n *Nodes) ShortKeys(ctx context.Context, from, hour int64, key []byte) (keys map[int64][]byte, err error) {
	err = pgx.BeginFunc(ctx, n.db.Pool, func(tx pgx.Tx) error {
		b := &pgx.Batch{}
		b.Queue("DELETE FROM short_key WHERE hour < $1 OR hour > $2", from, hour+1)
		b.Queue("INSERT INTO short_key (hour, key) SELECT $1::bigint, $2::bytea WHERE $2::bytea IS NOT NULL ON CONFLICT DO NOTHING", hour, key)
		keys = map[int64][]byte{}
		var hour int64
		var key []byte
		conn.Queue(b, []any{&hour, &key}, func() error {
			keys[hour] = key
			return nil
		}, "SELECT hour, key FROM short_key")
		return tx.SendBatch(ctx, b).Close()
	})
	return keys, err
}

// RemoveFiles implements store.Shared.
func (n *Nodes) RemoveFiles(ctx context.Context, path string) error {
	return n.exec(ctx, "DELETE FROM file WHERE "+below, path)
}

// RemoveFile implements store.Shared.
func (n *Nodes) RemoveFile(ctx context.Context, path string, content []byte) error {
	return n.exec(ctx, "DELETE FROM file WHERE path = $1 AND content = $2", path, content)
}
