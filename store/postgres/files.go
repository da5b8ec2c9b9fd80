package postgres

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"mtagd/store"
)

var _ store.Shared = (*engine)(nil)

const (
	// readFilesTimeout is short: certmagic locks its certificates against handshakes while it looks whether another node has
	// renewed one.
	readFilesTimeout = 2 * time.Second
	// sharedTimeout bounds the other calls of store.Shared. A fail-over takes seconds.
	sharedTimeout = 30 * time.Second
)

// below selects the file $1, and the files below it. The byte after / is 0.
const below = `($1 = '' OR path = $1 OR path > $1 || '/' AND path < $1 || '0')`

// Files implements store.Shared. While the node is not ready, it fails at once.
func (e *engine) Files(ctx context.Context, path string, content bool) (files []store.File, err error) {
	if e.Ready() != nil {
		return nil, store.Unavailable("the database does not answer")
	}
	columns := "NULL::bytea"
	if content {
		columns = "content"
	}
	err = e.share(ctx, readFilesTimeout, func(ctx context.Context) error {
		files = nil
		return query(ctx, e.pool, func(rows pgx.Rows) error {
			var f store.File
			err := rows.Scan(&f.Path, &f.Modified, &f.Age, &f.Size, &f.Content)
			files = append(files, f)
			return err
		}, "SELECT path, modified, clock_timestamp() - modified, length(content), "+columns+" FROM file WHERE "+below+" ORDER BY path", path)
	})
	return files, err
}

// PutFile implements store.Shared.
func (e *engine) PutFile(ctx context.Context, path string, content []byte) error {
	return e.share(ctx, sharedTimeout, func(ctx context.Context) error {
		_, err := e.pool.Exec(ctx, `INSERT INTO file (path, modified, content) VALUES ($1, clock_timestamp(), $2)
			ON CONFLICT (path) DO UPDATE SET modified = excluded.modified, content = excluded.content`, path, content)
		return err
	})
}

// RemoveFiles implements store.Shared.
func (e *engine) RemoveFiles(ctx context.Context, path string) error {
	return e.share(ctx, sharedTimeout, func(ctx context.Context) error {
		_, err := e.pool.Exec(ctx, "DELETE FROM file WHERE "+below, path)
		return err
	})
}

// RemoveFile implements store.Shared.
func (e *engine) RemoveFile(ctx context.Context, path string, content []byte) error {
	return e.share(ctx, sharedTimeout, func(ctx context.Context) error {
		_, err := e.pool.Exec(ctx, "DELETE FROM file WHERE path = $1 AND content = $2", path, content)
		return err
	})
}

// share makes a call of store.Shared, and repeats it while its connection fails.
func (e *engine) share(ctx context.Context, timeout time.Duration, call func(ctx context.Context) error) error {
	working, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	return endedOr(ctx, unavailable(e.retry(working, func() error { return call(working) })))
}
