package postgres

import (
	"testing"

	"github.com/jackc/pgx/v5"

	"mtagd/store/pgtest"
	"mtagd/store/postgres/count"
)

// The server and this program put a time into the same bucket, also before 1970 and on the edge of a bucket.
func TestBucketsInSQL(t *testing.T) {
	session, err := pgx.Connect(t.Context(), pgtest.Database(t))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = session.Close(t.Context()) }()
	for level, size := range count.BucketSize {
		for _, at := range []int64{-2*size - 1, -2 * size, -size - 1, -size, -size + 1, -1, 0, 1, size - 1, size, size + 1} {
			var got int64
			if err := session.QueryRow(t.Context(), "SELECT "+count.BucketSQL("$1::bigint", "$2::bigint"), at, size).Scan(&got); err != nil {
				t.Fatal(err)
			}
			if want := count.BucketOf(level, at); got != want {
				t.Errorf("level %d: time %d is in bucket %d, want %d", level, at, got, want)
			}
		}
	}
}
