package sinks

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"mtagd/partnerapi/delivery/kind"
	"mtagd/store"
)

// postgres is a table in PostgreSQL. It is created if it does not exist.
type postgres struct {
	Host       string `json:"host"`
	Database   string `json:"database"`
	User       string `json:"user"`
	Table      string `json:"table"`
	WithoutTLS bool   `json:"withoutTLS"` // in tests, and in the operator's networks

	config *pgx.ConnConfig
}

func openPostgres(o kind.Options) (kind.Target, error) {
	t := &postgres{Table: "events"}
	if err := o.Decode(t); err != nil {
		return nil, err
	}
	at, err := checkHost("host", t.Host, "5432", t.WithoutTLS, o)
	switch {
	case err != nil:
		return nil, err
	case t.User == "":
		return nil, store.Invalid("settings.user", "is required")
	case t.Database == "":
		return nil, store.Invalid("settings.database", "is required")
	}
	host, _, _ := net.SplitHostPort(at)
	address := url.URL{Scheme: "postgres", User: url.UserPassword(t.User, o.Secret("password")), Host: at,
		Path: "/" + t.Database, RawQuery: "sslmode=disable&application_name=mtagd"} // TLS is set below, so that files and variables of this machine have no effect
	config, err := pgx.ParseConfig(address.String())
	if err != nil {
		return nil, store.Invalid("settings", "cannot be used to connect")
	}
	if !t.WithoutTLS {
		config.TLSConfig = &tls.Config{ServerName: host}
	}
	config.LookupFunc = func(_ context.Context, host string) ([]string, error) { return []string{host}, nil } // Dial resolves names
	config.DefaultQueryExecMode = pgx.QueryExecModeExec                                                       // poolers do not keep prepared statements
	config.MaxProtocolMessageBodyLen = maxAnswer                                                              // pgx would allocate whatever length a message states
	t.config = config
	return t, checkTable(t.Table)
}

// Limits implements kind.Target.
func (t *postgres) Limits() kind.Limits { return limits(time.Second) }

// Requests implements kind.Target.
func (t *postgres) Requests(events []*kind.Event, _ time.Time) ([]kind.Request, []kind.Refusal) {
	body, _ := lines(events[:1]) // for a preview: the columns are sent as arrays
	return []kind.Request{{
		URL: "postgres://" + t.config.Host + "/" + t.config.Database, Body: body, Events: all(len(events)),
		Do: func(ctx context.Context, dial kind.Dial) (kind.Answer, error) { return t.insert(ctx, dial, events) },
	}}, nil
}

// insert inserts the events that the table does not have, in one transaction. If PostgreSQL refuses an event, such as one
// with \u0000, the answer is a bad request.
func (t *postgres) insert(ctx context.Context, dial kind.Dial, events []*kind.Event) (kind.Answer, error) {
	config := t.config.Copy()
	config.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
		c, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		return &boundedConn{c, maxAnswer}, nil
	}
	c, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return answerOf(err)
	}
	defer c.Close(ctx)
	table := pgx.Identifier(strings.Split(t.Table, ".")).Sanitize()
	texts := make([][]string, 6)
	times, bots := make([][]time.Time, 2), make([]bool, 0, len(events))
	for _, e := range events {
		for i, text := range []string{string(e.ID), string(e.Merchant), string(e.Tag), string(e.MUID), e.Name, string(e.Raw)} {
			texts[i] = append(texts[i], text)
		}
		times[0], times[1], bots = append(times[0], e.Time), append(times[1], e.ReceivedAt), append(bots, e.Bot)
	}
	insert := func() error {
		_, err := c.Exec(ctx, `INSERT INTO `+table+` (id, merchant_id, tag_id, muid, event_name, event_time, received_at, is_bot, raw_data)
			SELECT id, merchant_id, tag_id, muid, event_name, event_time, received_at, is_bot, raw_data::jsonb
			FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::timestamptz[], $7::timestamptz[], $8::bool[], $9::text[])
				AS e (id, merchant_id, tag_id, muid, event_name, event_time, received_at, is_bot, raw_data)
			ON CONFLICT (id) DO NOTHING`, texts[0], texts[1], texts[2], texts[3], texts[4], times[0], times[1], bots, texts[5])
		return err
	}
	const undefinedTable = "42P01"
	err = insert()
	if refused, is := errors.AsType[*pgconn.PgError](err); is && refused.Code == undefinedTable {
		if _, err = c.Exec(ctx, `CREATE TABLE IF NOT EXISTS `+table+` (id text PRIMARY KEY, merchant_id text NOT NULL, tag_id text NOT NULL,
			muid text NOT NULL, event_name text NOT NULL, event_time timestamptz NOT NULL, received_at timestamptz NOT NULL, is_bot boolean NOT NULL,
			raw_data jsonb NOT NULL)`); err == nil {
			err = insert()
		}
	}
	return answerOf(err)
}

// maxAnswer is how many bytes a server may send in a connection: a hostile one must not fill the memory. Most are
// certificates and errors.
const maxAnswer = 256 << 10

var errTooLong = errors.New("the answer is too long")

type boundedConn struct {
	net.Conn
	left int
}

// Read implements net.Conn.
func (c *boundedConn) Read(b []byte) (int, error) {
	if c.left == 0 {
		return 0, errTooLong
	}
	n, err := c.Conn.Read(b[:min(len(b), c.left)])
	c.left -= n
	return n, err
}

// answerOf translates the result of PostgreSQL to an HTTP answer.
func answerOf(err error) (kind.Answer, error) {
	refused, is := errors.AsType[*pgconn.PgError](err)
	switch {
	case err == nil:
		return kind.Answer{Status: http.StatusOK}, nil
	case !is:
		return kind.Answer{}, err
	}
	status := http.StatusServiceUnavailable
	if class := refused.Code[:min(2, len(refused.Code))]; class == "22" || class == "23" { // data exceptions and integrity constraints: the event is at fault
		status = http.StatusBadRequest
	}
	return kind.Answer{Status: status, Body: []byte(refused.Code + " " + refused.Message)}, nil
}

// Read implements kind.Target.
func (t *postgres) Read(_ kind.Request, a kind.Answer) kind.Verdict {
	v := kind.Standard(a)
	v.Reason = string(a.Body)
	return v
}
