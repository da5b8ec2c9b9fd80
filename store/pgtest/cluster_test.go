package pgtest

import (
	"testing"
)

// A cluster survives what tests do to it.
func TestCluster(t *testing.T) {
	Need(t)
	c, err := NewCluster(3)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	ctx := t.Context()
	write := func() {
		t.Helper()
		if err := c.Servers[c.Primary].exec("INSERT INTO seen VALUES (1)"); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.AwaitStandbys(ctx); err != nil {
		t.Fatal(err)
	}
	if err := c.Servers[0].exec("CREATE TABLE seen (n int)"); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		write()
		old := c.Primary
		if err := c.Servers[old].Crash(); err != nil {
			t.Fatal(err)
		}
		if err := c.Promote(ctx); err != nil {
			t.Fatal(err)
		}
		write()
		if err := c.Rejoin(old); err != nil {
			t.Fatal(err)
		}
		if err := c.AwaitStandbys(ctx); err != nil {
			t.Fatal(err)
		}
	}
	thaw, err := c.Servers[c.Primary].Freeze()
	if err != nil {
		t.Fatal(err)
	}
	if err := thaw(); err != nil {
		t.Fatal(err)
	}
	write()
	if err := c.Servers[c.Primary].Crash(); err != nil {
		t.Fatal(err)
	}
	if err := c.Servers[c.Primary].Start(); err != nil {
		t.Fatal(err)
	}
	if err := c.AwaitStandbys(ctx); err != nil {
		t.Fatal(err)
	}
	write()
}
