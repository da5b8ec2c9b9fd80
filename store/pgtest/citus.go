package pgtest

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"mtagd/store/testenv"
)

// Citus is a coordinator and two workers with the extension Citus.
type Citus struct {
	Coordinator *Server
	Workers     []*Server
	prepare     func(url string) error
	prepared    pool

	creates   sync.Mutex // CREATE DATABASE copies one that nobody may use meanwhile
	databases int
}

// citusSettings are few shards, as each costs time, and no wait for maintenance.
const citusSettings = `
shared_preload_libraries = 'citus'
max_prepared_transactions = 200
max_connections = 300
shared_buffers = 32MB
citus.shard_count = 4
citus.node_conninfo = 'sslmode=prefer'
citus.max_cached_conns_per_worker = 2
citus.enable_statistics_collection = off
`

// NewCitus starts a cluster, and skips the test where the extension is not installed. prepare makes the tables of a
// database and distributes them.
func NewCitus(t testing.TB, prepare func(url string) error) *Citus {
	t.Helper()
	Need(t)
	path, err := find("pg_config")
	if err == nil {
		version := filepath.Base(filepath.Dir(filepath.Dir(path)))
		_, err = os.Stat("/usr/share/postgresql/" + version + "/extension/citus.control")
	}
	if err != nil {
		testenv.Skip(t, "the extension Citus is not installed beside PostgreSQL")
	}
	c := &Citus{prepare: prepare}
	for i := range 3 {
		s := NewServerWith(t, Options{Settings: Settings + citusSettings})
		if i == 0 {
			c.Coordinator = s
		} else {
			c.Workers = append(c.Workers, s)
		}
	}
	return c
}

// Database returns the address of a database with the empty tables of prepare.
func (c *Citus) Database(t testing.TB) (url string) {
	t.Helper()
	return c.prepared.database(t, func() string {
		url := c.EmptyDatabase(t)
		testenv.Check(t, c.prepare(url))
		return url
	})
}

// EmptyDatabase returns the address of a new database without tables, whose workers are known.
func (c *Citus) EmptyDatabase(t testing.TB) (url string) {
	t.Helper()
	c.creates.Lock()
	defer c.creates.Unlock()
	c.databases++
	name := fmt.Sprintf("test%d", c.databases)
	for _, s := range append([]*Server{c.Coordinator}, c.Workers...) {
		testenv.Check(t, s.Exec("CREATE DATABASE "+name))
		testenv.Check(t, run(s.URL(name), "CREATE EXTENSION citus"))
	}
	url = c.Coordinator.URL(name)
	statements := []string{fmt.Sprintf("SELECT citus_set_coordinator_host('%s', 5432)", c.Coordinator.dir)}
	for _, w := range c.Workers {
		statements = append(statements, fmt.Sprintf("SELECT citus_add_node('%s', 5432)", w.dir))
	}
	testenv.Check(t, run(url, statements...))
	return url
}
