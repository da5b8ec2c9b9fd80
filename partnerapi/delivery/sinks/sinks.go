// Package sinks sends events to the partner's own systems: PostgreSQL, ClickHouse, files in an S3-compatible store, NATS and
// Kafka. Events have the columns of an export (package export).
//
//   - PostgreSQL stores each event exactly once: the event's id is the primary key, and a request is one transaction.
//
//   - ClickHouse drops an identical repeated request, by its token. After a kill or a failure, events may be repeated in
//     different requests.
//
//   - A repeated file replaces the first one. After a kill or a failure, events may be repeated in other files.
//
//   - NATS drops repeats by the event's id, within the duplicate window of the stream. Events are in order, unless the
//     stream refuses one.
//
//   - Kafka has the events of a visitor in order. An idempotent producer leaves no repeats within a request. After a kill or
//     a failure, events may be repeated. Transactions would not change that, because the position of a destination is not
//     stored in Kafka.
//
// So readers of Kafka, ClickHouse and of files must drop repeats by the id.
package sinks

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"net"
	"regexp"
	"strings"
	"time"

	"mtagd/partnerapi/delivery/kind"
	"mtagd/partnerapi/export"
	"mtagd/store"
)

// Kinds are the kinds of sinks.
func Kinds() []kind.Kind {
	text := func(name, pattern, hint string) kind.Setting {
		return kind.Setting{Name: name, Type: kind.Text, Hint: hint, Required: true, Pattern: regexp.MustCompile("^(" + pattern + ")$")}
	}
	preset := func(name, value, pattern, hint string) kind.Setting {
		s := text(name, pattern, hint)
		s.Default, s.Required = value, false
		return s
	}
	direct := kind.Setting{Name: withoutTLS, Type: kind.Flag, Hint: "true only in tests, and in networks that the operator allows", Hidden: true}
	const (
		name     = `[A-Za-z_][A-Za-z0-9_]{0,62}`
		table    = `(` + name + `\.)?` + name
		path     = `(\.?[A-Za-z0-9_=/-]){1,200}\.?` // without ..
		ascii    = `[ -~]+`
		whatever = `(?s).*`
	)
	return []kind.Kind{
		sink("postgresql", openPostgres, password, direct, text("host", whatever, "the name or the address of a server"), text("database", whatever, "the name of a database"),
			text("user", whatever, "a user of the database"), preset("table", "events", table, "a name such as events or public.events")),
		sink("clickhouse", openClickHouse, kind.Secret{Name: "password", Required: true, Check: checkASCII}, text("url", whatever, "an address such as https://example.com"),
			preset("database", "default", name, "the name of a database"), preset("table", "events", table, "a name such as events"),
			preset("user", "default", ascii, "a user, in printable ASCII")),
		sink("s3", openS3, kind.Secret{Name: "secretAccessKey", Required: true}, text("endpoint", whatever, "an address such as https://s3.example.com"),
			text("bucket", path, "the name of a bucket, of letters, digits and . _ = / -"), text("accessKeyId", path, "the id of an access key, of letters, digits and . _ = / -"),
			preset("region", "us-east-1", path, "a region, of letters, digits and . _ = / -"),
			preset("prefix", "", path, "what the names of files begin with, of letters, digits and . _ = / -")),
		sink("kafka", openKafka, password, direct, text("brokers", whatever, "names or addresses of brokers, with commas between them"),
			preset("topic", "events", `[A-Za-z0-9._-]{1,249}`, "the name of a topic"), text("user", whatever, "a user"),
			preset("mechanism", sha512, sha512+`|SCRAM-SHA-256|PLAIN`, "SCRAM-SHA-512, SCRAM-SHA-256 or PLAIN")),
		sink("nats", openNATS, password, direct, text("host", whatever, "the name or the address of a server"),
			preset("subject", "events", `[!-)+-=?-~]{1,200}`, "a subject of a JetStream stream, such as shop.events, without wildcards"),
			preset("user", "", whatever, "a user; without one, the password is a token or the content of a .creds file")),
	}
}

const (
	withoutTLS = "withoutTLS"
	sha512     = "SCRAM-SHA-512"
)

var password = kind.Secret{Name: "password", Required: true}

func checkASCII(secret string) error {
	if strings.ContainsFunc(secret, func(r rune) bool { return r < ' ' || r > '~' }) {
		return errors.New("must be printable ASCII")
	}
	return nil
}

func sink(name string, open func(kind.Options, kind.Values) (kind.Target, error), secret kind.Secret, settings ...kind.Setting) kind.Kind {
	return kind.Kind{Name: name, Secrets: []kind.Secret{secret}, Settings: settings, New: open}
}

// common is what the sinks have in common.
type common struct{}

// Limits implements kind.Target. Sinks work best with few large requests.
func (common) Limits() kind.Limits {
	return kind.Limits{Events: 1000, Lanes: 1, MaxAge: 30 * 24 * time.Hour, Wait: time.Second, Raw: true}
}

// Read implements kind.Target. The body of an answer that is no success says why.
func (common) Read(_ kind.Request, a kind.Answer) kind.Verdict {
	v := kind.Standard(a)
	if v.Outcome != kind.Done {
		v.Reason = strings.TrimSpace(string(a.Body))
	}
	return v
}

// lines returns events as NDJSON, and the object of each in it.
func lines(events []*kind.Event) (b []byte, each [][]byte) {
	size := 0
	for _, e := range events {
		size += len(e.Raw) + 500
	}
	b = make([]byte, 0, size)
	for _, e := range events {
		from := len(b)
		b = append(export.AppendJSON(b, &e.Received), '\n')
		each = append(each, b[from:len(b)-1])
	}
	return b, each
}

// token returns an idempotency token: the same events have the same token.
func token(events []*kind.Event) string {
	sum := sha256.New()
	for _, e := range events {
		_, _ = sum.Write([]byte(e.Delivery)) // never fails
	}
	return hex.EncodeToString(sum.Sum(nil)[:16])
}

// server returns the address of a server that is reached without HTTP. name is the setting that host comes from, port the
// default port.
func server(o kind.Options, v kind.Values, name, host, port string) (string, error) {
	if v.Flag(withoutTLS) && !o.AllowHTTP {
		return "", store.Invalid("settings."+withoutTLS, "must be false")
	}
	if given, itsPort, err := net.SplitHostPort(host); err == nil {
		host, port = given, itsPort
	}
	if host == "" || strings.ContainsAny(host+port, "/,@ ") {
		return "", store.Invalid("settings."+name, "must be the name or the address of a server")
	}
	return net.JoinHostPort(host, port), nil
}
