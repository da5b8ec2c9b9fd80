package sinks

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"mtagd/partnerapi/delivery/kind"
	"mtagd/partnerapi/export"
	"mtagd/store"
)

// postgres is a table in PostgreSQL. It is created if it does not exist.
type postgres struct {
	common
	config *pgx.ConnConfig
	table  string
}

func openPostgres(o kind.Options, v kind.Values) (kind.Target, error) {
	at, err := server(o, v, "host", v.Text("host"), "5432")
	if err != nil {
		return nil, err
	}
	host, _, _ := net.SplitHostPort(at)
	address := url.URL{Scheme: "postgres", User: url.UserPassword(v.Text("user"), o.Secret("password")), Host: at,
		Path: "/" + v.Text("database"), RawQuery: "sslmode=disable&application_name=mtagd"} // TLS is set below, so that files and variables of this machine have no effect
	config, err := pgx.ParseConfig(address.String())
	if err != nil {
		return nil, store.Invalid("settings", "cannot be used to connect")
	}
	if !v.Flag(withoutTLS) {
		config.TLSConfig = &tls.Config{ServerName: host}
	}
	config.LookupFunc = func(_ context.Context, host string) ([]string, error) { return []string{host}, nil } // Dial resolves names
	config.DefaultQueryExecMode = pgx.QueryExecModeExec                                                       // poolers do not keep prepared statements
	config.MaxProtocolMessageBodyLen = maxAnswer                                                              // pgx would allocate whatever length a message states
	return &postgres{common{}, config, v.Text("table")}, nil
}

func (t *postgres) Requests(events []*kind.Event, _ time.Time) ([]kind.Request, []kind.Refusal) {
	body, _ := lines(events[:1]) // for a preview: the columns are sent as arrays
	return []kind.Request{{
		URL: "postgres://" + t.config.Host + "/" + t.config.Database, Body: body, Events: events,
		Do: func(ctx context.Context, dial kind.Dial) (kind.Answer, error) { return t.insert(ctx, dial, events) },
	}}, nil
}

// The columns of a table of events are the fields of an export, with names such as event_time.
var (
	columns    []string // their names
	selected   []string // their values, in their types
	parameters []string // those that values returns
	described  []string // names and types
)

func init() {
	types := map[export.Type]string{export.Text: "text", export.Time: "timestamptz", export.Flag: "boolean", export.JSON: "jsonb"}
	for i, f := range export.Fields {
		name := regexp.MustCompile("[A-Z]").ReplaceAllStringFunc(f.Name, func(letter string) string { return "_" + strings.ToLower(letter) })
		sent := strings.ReplaceAll(types[f.Type], "jsonb", "text")
		columns = append(columns, name)
		selected = append(selected, name+"::"+types[f.Type])
		parameters = append(parameters, fmt.Sprintf("$%d::%s[]", i+1, sent))
		described = append(described, name+" "+types[f.Type])
	}
}

// values returns the events as parameters of a statement, one for each column.
func values(events []*kind.Event) (all []any) {
	for i := range export.Fields {
		switch f := &export.Fields[i]; f.Type {
		case export.Time:
			all = append(all, valuesOf[time.Time](f, events))
		case export.Flag:
			all = append(all, valuesOf[bool](f, events))
		default:
			all = append(all, valuesOf[string](f, events))
		}
	}
	return all
}

func valuesOf[V any](f *export.Field, events []*kind.Event) (all []V) {
	for _, e := range events {
		all = append(all, f.Value(&e.Received).(V))
	}
	return all
}

// insert inserts the events that the table does not have, in one transaction. It creates the table, or columns that it
// lacks. If PostgreSQL refuses an event, such as one with \u0000, the answer is a bad request.
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
	table := pgx.Identifier(strings.Split(t.table, ".")).Sanitize()
	names := strings.Join(columns, ", ")
	insert := func() error {
		_, err := c.Exec(ctx, `INSERT INTO `+table+` (`+names+`) SELECT `+strings.Join(selected, ", ")+`
			FROM unnest(`+strings.Join(parameters, ", ")+`) AS e (`+names+`) ON CONFLICT (id) DO NOTHING`, values(events)...)
		return err
	}
	const undefinedTable, undefinedColumn = "42P01", "42703"
	err = insert()
	if refused, is := errors.AsType[*pgconn.PgError](err); is {
		prepare := ""
		switch refused.Code {
		case undefinedTable:
			prepare = `CREATE TABLE IF NOT EXISTS ` + table + ` (` + strings.Join(described, " NOT NULL, ") + ` NOT NULL, PRIMARY KEY (id))`
		case undefinedColumn: // a new field
			prepare = `ALTER TABLE ` + table + ` ADD COLUMN IF NOT EXISTS ` + strings.Join(described, ", ADD COLUMN IF NOT EXISTS ")
		default:
			return answerOf(err)
		}
		if _, err = c.Exec(ctx, prepare); err == nil {
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
