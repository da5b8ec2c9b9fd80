package postgres

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"mtagd/store"
	"mtagd/store/pgtest"
	"mtagd/store/postgres/conn"
	"mtagd/store/testenv"
)

// What nodes share outlives the primary, and calls that are made meanwhile succeed as soon as there is another one.
func TestSharedFilesAndLeasesSurviveAFailOver(t *testing.T) {
	primary, standby := startWithStandby(t)
	s := newShopOn(t, fmt.Sprintf("postgres:///postgres?host=%s,%s&user=mtagd", primary.Dir(), standby.Dir()), Options{})
	testenv.Check(t, s.PutFile(t.Context(), "a/key", []byte("secret")))
	held, err := s.Lease(t.Context(), "x")
	if err != nil || held == nil {
		t.Fatal(held, err)
	}
	testenv.Check(t, primary.Kill())
	written := make(chan error)
	go func() {
		written <- errors.Join(s.PutFile(t.Context(), "a/cert", []byte("public")), held.Renew(t.Context()))
	}()
	testenv.Check(t, standby.Promote())
	if err := <-written; err != nil {
		t.Error(err)
	}
	await(t, "the node is not ready", func() bool { return s.Ready() == nil })
	files, err := s.Files(t.Context(), "a", true)
	if err != nil || len(files) != 2 || string(files[0].Content) != "public" || string(files[1].Content) != "secret" {
		t.Errorf("files %+v, %v", files, err)
	}
	if other, err := s.second().Lease(t.Context(), "x"); other != nil || err != nil {
		t.Errorf("another node has got the lease: %v", err)
	}
	if err := held.Release(t.Context()); err != nil {
		t.Error(err)
	}
}

// A lease is renewed while it is held. Its holder learns that it was lost, and that of a closed engine has ended.
func TestALeaseEnds(t *testing.T) {
	t.Parallel() // it mostly waits
	s := newShop(t, Options{})
	other := s.second()
	lost, err := s.Lease(t.Context(), "x")
	if err != nil || lost == nil {
		t.Fatal(lost, err)
	}
	exec(t, s.db.Pool, "UPDATE lease SET expires = clock_timestamp() - interval '1 s'")
	if err := lost.Renew(t.Context()); err != nil { // nobody else has taken it
		t.Fatal(err)
	}
	if taken, err := other.Lease(t.Context(), "x"); taken != nil || err != nil {
		t.Fatalf("another node has got a lease that was renewed, %v", err)
	}
	var taken store.Lease
	await(t, "the lease cannot be taken", func() bool { // at the first try, unless it is renewed just then
		exec(t, s.db.Pool, "UPDATE lease SET expires = clock_timestamp() - interval '1 s'")
		if taken, err = other.Lease(t.Context(), "x"); err != nil {
			t.Fatal(err)
		}
		return taken != nil
	})
	select {
	case <-lost.Held().Done(): // at the next renewal
	case <-time.After(time.Minute):
		t.Error("the holder does not notice that its lease was lost")
	}
	if err := lost.Release(t.Context()); !errors.Is(err, store.ErrLeaseLost) {
		t.Errorf("a lease that was lost is released: %v", err)
	}
	if taken.Held().Err() != nil {
		t.Error("the other lease has ended")
	}
	if err := taken.Release(t.Context()); err != nil {
		t.Error(err)
	}
	if taken.Held().Err() == nil {
		t.Error("a lease is held after its release")
	}
}

// A node that stops does not wait for a database that is gone.
func TestALeaseOfADatabaseThatIsGone(t *testing.T) {
	t.Parallel() // it mostly waits
	server := pgtest.NewServer(t)
	thaw := func() error { return nil }
	t.Cleanup(func() { // after the node has stopped
		if err := thaw(); err != nil {
			t.Error(err)
		}
	})
	s := newShopOn(t, server.URL("postgres"), Options{})
	held, err := s.Lease(t.Context(), "x")
	if err != nil || held == nil {
		t.Fatal(held, err)
	}
	if thaw, err = server.Freeze(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), conn.FailOverTimeout-time.Second)
	defer cancel()
	if err := held.Release(ctx); store.KindOf(err) != store.KindUnavailable {
		t.Errorf("a release without a database: %v, want KindUnavailable", err)
	}
}

// A file that another node has replaced stays.
func TestAFileOfOtherContentStays(t *testing.T) {
	s := newShop(t, Options{})
	put := func(content string) {
		t.Helper()
		testenv.Check(t, s.PutFile(t.Context(), "a/x", []byte(content)))
	}
	left := func() []store.File {
		t.Helper()
		files, err := s.Files(t.Context(), "", true)
		testenv.Check(t, err)
		return files
	}
	put("mine")
	put("another's")
	testenv.Check(t, s.RemoveFile(t.Context(), "a/x", []byte("mine")))
	exec(t, s.db.Pool, "UPDATE file SET modified = modified - interval '49 hours'")
	if files := left(); len(files) != 1 || files[0].Age < 49*time.Hour || files[0].Age > 50*time.Hour {
		t.Errorf("the files are %+v", files)
	}
	testenv.Check(t, s.RemoveFile(t.Context(), "a/x", []byte("another's")))
	if files := left(); len(files) != 0 {
		t.Errorf("files are left: %+v", files)
	}
}

// The first key of an hour counts on all nodes, and old ones are deleted.
func TestShortKeys(t *testing.T) {
	s := newShop(t, Options{})
	a, b := s.engine, s.second()
	expect := func(e *engine, from, hour int64, key string, want ...string) {
		t.Helper()
		var added []byte
		if key != "" {
			added = []byte(key)
		}
		keys, err := e.ShortKeys(t.Context(), from, hour, added)
		var got []string
		for _, hour := range slices.Sorted(maps.Keys(keys)) {
			got = append(got, fmt.Sprint(hour, " ", string(keys[hour])))
		}
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("got %q, %v; want %q", got, err, want)
		}
	}
	expect(a, 1, 7, "")
	expect(a, 1, 7, "a", "7 a")
	expect(b, 1, 7, "b", "7 a")
	expect(b, 1, 8, "b", "7 a", "8 b")
	expect(a, 8, 9, "", "8 b")
	expect(a, 6, 6, "") // the clock was wrong
	var logged bool
	if err := s.db.Pool.QueryRow(t.Context(), "SELECT relpersistence <> 'u' FROM pg_class WHERE relname = 'short_key'").Scan(&logged); err != nil || logged {
		t.Errorf("the keys are in the write-ahead log and so in backups, %v", err)
	}
}

// Each node gets the messages of the others once, and none of its own.
func TestNodesExchangeMessages(t *testing.T) {
	s := newShop(t, Options{})
	a, b := s.engine, s.second()
	expect := func(e *engine, mine string, others int, want ...string) {
		t.Helper()
		messages, n, err := e.Exchange(t.Context(), []byte(mine))
		testenv.Check(t, err)
		var got []string
		for _, m := range messages {
			got = append(got, string(m))
		}
		if !slices.Equal(got, want) || n != others {
			t.Errorf("got %q of %d other nodes, want %q of %d", got, n, want, others)
		}
	}
	expect(a, "a1", 0)
	expect(a, "a2", 0)
	expect(b, "b1", 1, "a1", "a2")
	expect(b, "", 1)
	expect(a, "a3", 1, "b1", "")
	expect(b, "", 1, "a3")
	for i := range 2 * 10 {
		expect(b, fmt.Sprint(i), 1)
	}
	var n int
	if err := s.db.Pool.QueryRow(t.Context(), "SELECT count(*) FROM message").Scan(&n); err != nil || n != 3+10 {
		t.Errorf("%d messages are left, %v", n, err)
	}
	exec(t, s.db.Pool, "UPDATE message SET at = at - interval '1 hour'")
	expect(a, "", 1) // they are too old
	testenv.Check(t, a.Tidy(t.Context()))
	if err := s.db.Pool.QueryRow(t.Context(), "SELECT count(*) FROM message").Scan(&n); err != nil || n != 1 {
		t.Errorf("%d messages are left, %v; want the new one", n, err)
	}
}
