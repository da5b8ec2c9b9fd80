package pgtest

import (
	"testing"

	"mtagd/store/testenv"
)

// A cluster survives what tests do to it.
func TestCluster(t *testing.T) {
	Need(t)
	c, err := NewCluster(3)
	testenv.Check(t, err)
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	ctx := t.Context()
	write := func() {
		t.Helper()
		testenv.Check(t, c.Servers[c.Primary].exec("INSERT INTO seen VALUES (1)"))
	}
	testenv.Check(t, c.AwaitStandbys(ctx))
	testenv.Check(t, c.Servers[0].exec("CREATE TABLE seen (n int)"))
	for range 2 {
		write()
		old := c.Primary
		testenv.Check(t, c.Servers[old].Crash())
		testenv.Check(t, c.Promote(ctx))
		write()
		testenv.Check(t, c.Rejoin(old))
		testenv.Check(t, c.AwaitStandbys(ctx))
	}
	thaw, err := c.Servers[c.Primary].Freeze()
	testenv.Check(t, err)
	testenv.Check(t, thaw())
	write()
	testenv.Check(t, c.Servers[c.Primary].Crash())
	testenv.Check(t, c.Servers[c.Primary].Start())
	testenv.Check(t, c.AwaitStandbys(ctx))
	write()
}
