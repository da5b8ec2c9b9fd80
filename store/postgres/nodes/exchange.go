// Package nodes implements what nodes share besides the service's data: files such as certificates, leases, and messages.
package nodes

import (
	"context"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"mtagd/store"
	"mtagd/store/postgres/conn"
)

// Nodes implements store.Shared.
type Nodes struct {
	db    *conn.DB
	ready func() error // returns why the database does not answer, or nil

	// Exchange alone uses these.
	sent  int64               // the number of this node's last message
	heard map[uuid.UUID]heard // the last message of each other node
}

// New returns the files, leases and messages of a database's nodes.
func New(db *conn.DB, ready func() error) *Nodes {
	return &Nodes{db: db, ready: ready, heard: map[uuid.UUID]heard{}}
}

type heard struct {
	seq int64
	at  time.Time // when it was read
}

const (
	exchangeTimeout = 2 * time.Second
	keepMessages    = 10 // of each node
	forgetNode      = time.Minute
)

// beginExchange begins a transaction whose commit waits for no disk and no standby.
const beginExchange = "BEGIN; SET LOCAL synchronous_commit = off"

// Exchange implements store.Shared.
func (n *Nodes) Exchange(ctx context.Context, mine []byte) (messages [][]byte, others int, err error) {
	if n.ready() != nil {
		return nil, 0, store.Unavailable("the database does not answer")
	}
	ctx, cancel := context.WithTimeout(ctx, exchangeTimeout)
	defer cancel()
	var nodes []uuid.UUID
	var seqs []int64
	for node, last := range n.heard {
		if time.Since(last.at) > forgetNode { // its messages are deleted by now
			delete(n.heard, node)
			continue
		}
		nodes, seqs = append(nodes, node), append(seqs, last.seq)
	}
	n.sent++
	type message struct {
		node uuid.UUID
		seq  int64
	}
	var read []message
	err = pgx.BeginTxFunc(ctx, n.db.Pool, pgx.TxOptions{BeginQuery: beginExchange}, func(tx pgx.Tx) error {
		b := &pgx.Batch{}
		b.Queue("INSERT INTO message (node, seq, at, content) VALUES ($1, $2, clock_timestamp(), coalesce($3::bytea, ''))", n.db.Node, n.sent, mine)
		b.Queue("DELETE FROM message WHERE node = $1 AND seq <= $2", n.db.Node, n.sent-keepMessages)
		var m message
		var content []byte
		conn.Queue(b, []any{&m.node, &m.seq, &content}, func() error {
			read, messages = append(read, m), append(messages, content)
			return nil
		}, `SELECT m.node, m.seq, m.content FROM message m LEFT JOIN unnest($2::uuid[], $3::bigint[]) AS h(node, seq) ON h.node = m.node
			WHERE m.node <> $1 AND m.seq > coalesce(h.seq, 0) AND m.at > clock_timestamp() - interval '10 seconds' ORDER BY m.node, m.seq`,
			n.db.Node, nodes, seqs)
		return tx.SendBatch(ctx, b).Close()
	})
	if err != nil {
		return nil, 0, conn.Unavailable(err)
	}
	for _, m := range read {
		n.heard[m.node] = heard{m.seq, time.Now()}
	}
	return messages, len(n.heard), nil
}
