package postgres

import (
	"testing"

	"github.com/jackc/pgx/v5"

	"mtagd/store/pgtest"
	"mtagd/store/postgres/count"
	"mtagd/store/testenv"
)

// The server and this program put a time into the same bucket, also before 1970 and on the edge of a bucket.
func TestBucketsInSQL(t *testing.T) {
	session, err := pgx.Connect(t.Context(), pgtest.Database(t))
	testenv.Check(t, err)
	defer func() { _ = session.Close(t.Context()) }()
	for level, size := range count.BucketSize {
		for _, at := range []int64{-2*size - 1, -2 * size, -size - 1, -size, -size + 1, -1, 0, 1, size - 1, size, size + 1} {
			var got int64
			testenv.Check(t, session.QueryRow(t.Context(), "SELECT "+count.BucketSQL("$1::bigint", "$2::bigint"), at, size).Scan(&got))
			if want := count.BucketOf(level, at); got != want {
				t.Errorf("level %d: time %d is in bucket %d, want %d", level, at, got, want)
			}
		}
	}
}
