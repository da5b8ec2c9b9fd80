package postgres

import (
	"reflect"
	"testing"

	"github.com/google/uuid"

	"mtagd/store/pgtest"
	"mtagd/store/postgres/conn"
	"mtagd/store/testenv"
)

// Arrays come back as they were sent, whatever their length.
func TestArraysAreEncoded(t *testing.T) {
	db, err := conn.Open(t.Context(), pgtest.Database(t), conn.Options{})
	testenv.Check(t, err)
	defer db.Close()
	for _, n := range []int{0, 1, 3} {
		uuids, bytes := make([]uuid.UUID, n), make([][]byte, n)
		for i := range n {
			uuids[i], bytes[i] = uuid.New(), make([]byte, i)
		}
		var gotUUIDs []uuid.UUID
		var gotBytes [][]byte
		var one uuid.UUID
		testenv.Check(t, db.Pool.QueryRow(t.Context(), "SELECT $1::uuid[], $2::bytea[], $3::uuid", uuids, bytes, uuid.Max).Scan(&gotUUIDs, &gotBytes, &one))
		if !reflect.DeepEqual(gotUUIDs, uuids) || !reflect.DeepEqual(gotBytes, bytes) || one != uuid.Max {
			t.Errorf("%v, %v and %v came back as %v, %v and %v", uuids, bytes, uuid.Max, gotUUIDs, gotBytes, one)
		}
	}
	var none *int
	if err := db.Pool.QueryRow(t.Context(), "SELECT array_length($1::uuid[], 1)", []uuid.UUID(nil)).Scan(&none); err != nil || none != nil {
		t.Errorf("a nil slice has length %v, %v", none, err)
	}
}
