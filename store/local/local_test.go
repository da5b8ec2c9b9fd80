package local

import (
	"testing"
	"time"

	"mtagd/store"
	"mtagd/store/storetest"
)

func TestConformance(t *testing.T) { storetest.Run(t, openForSuite) }

func BenchmarkEngine(b *testing.B) { storetest.Bench(b, openForSuite) }

func openForSuite(t testing.TB, dir string, now func() time.Time) store.Engine {
	e, err := Open(dir, Options{Log: quiet, Now: now})
	if err != nil {
		t.Fatal(err)
	}
	return e
}
