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
	"encoding/json"
	"net"
	"net/http"
	"regexp"
	"strings"
	"time"

	"mtagd/partnerapi/delivery/kind"
	"mtagd/partnerapi/export"
	"mtagd/store"
)

// Kinds are the kinds of sinks.
func Kinds() []kind.Kind {
	text := func(name, hint string) kind.Setting {
		return kind.Setting{Name: name, Type: kind.Text, Hint: hint, Required: true}
	}
	preset := func(name, value, hint string) kind.Setting {
		return kind.Setting{Name: name, Type: kind.Text, Hint: hint, Default: value}
	}
	password := []kind.Secret{{Name: "password", Required: true}}
	return []kind.Kind{
		{Name: "postgresql", Secrets: password, Open: openPostgres, Settings: []kind.Setting{
			text("host", "the name or the address of a server"), text("database", "the name of a database"), text("user", "a user of the database"),
			preset("table", "events", "a name such as events or public.events"),
		}},
		{Name: "clickhouse", Secrets: password, Open: openClickHouse, Settings: []kind.Setting{
			text("url", "an address such as https://example.com"), preset("database", "default", "the name of a database"),
			preset("table", "events", "a name such as events"), preset("user", "default", "a user"),
		}},
		{Name: "s3", Secrets: []kind.Secret{{Name: "secretAccessKey", Required: true}}, Open: openS3, Settings: []kind.Setting{
			text("endpoint", "an address such as https://s3.example.com"), text("bucket", "the name of a bucket"), text("accessKeyId", "the id of an access key"),
			preset("region", "us-east-1", "a region"), preset("prefix", "", "what the names of files begin with"),
		}},
		{Name: "kafka", Secrets: password, Open: openKafka, Settings: []kind.Setting{
			text("brokers", "names or addresses of brokers, with commas between them"), preset("topic", "events", "the name of a topic"),
			text("user", "a user"), preset("mechanism", "SCRAM-SHA-512", "SCRAM-SHA-512, SCRAM-SHA-256 or PLAIN"),
		}},
		{Name: "nats", Secrets: password, Open: openNATS, Settings: []kind.Setting{
			text("host", "the name or the address of a server"), preset("subject", "events", "a subject of a JetStream stream"),
			preset("user", "", "a user; without one, the password is a token or the content of a .creds file"),
		}},
	}
}

// Sinks work best with few large requests.
func limits(wait time.Duration) kind.Limits {
	return kind.Limits{Events: 1000, Lanes: 1, MaxAge: 30 * 24 * time.Hour, Wait: wait, Raw: true}
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

// all returns the indexes of n events.
func all(n int) []int {
	places := make([]int, n)
	for i := range places {
		places[i] = i
	}
	return places
}

// token returns an idempotency token: the same events have the same token.
func token(events []*kind.Event) string {
	sum := sha256.New()
	for _, e := range events {
		_, _ = sum.Write([]byte(e.Delivery)) // never fails
	}
	return hex.EncodeToString(sum.Sum(nil)[:16])
}

var isName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,62}$`).MatchString

var isTable = regexp.MustCompile(`^([A-Za-z_][A-Za-z0-9_]{0,62}\.)?[A-Za-z_][A-Za-z0-9_]{0,62}$`).MatchString

func checkTable(table string) error {
	if !isTable(table) {
		return store.Invalid("settings.table", "must be a name such as events or public.events")
	}
	return nil
}

// checkHost returns the address of a server. name is the setting that host comes from, port the default port.
func checkHost(name, host, port string, withoutTLS bool, o kind.Options) (string, error) {
	if given, itsPort, err := net.SplitHostPort(host); err == nil {
		host, port = given, itsPort
	}
	switch {
	case host == "" || strings.ContainsAny(host+port, "/,@ "):
		return "", store.Invalid("settings."+name, "must be the name or the address of a server")
	case withoutTLS && !o.AllowHTTP:
		return "", store.Invalid("settings.withoutTLS", "must be false")
	}
	return net.JoinHostPort(host, port), nil
}

// answerEach answers a request of which some events are refused, with the reasons.
func answerEach(refused map[int]string) (kind.Answer, error) {
	body, err := json.Marshal(refused)
	return kind.Answer{Status: http.StatusOK, Body: body}, err
}

// readEach reads what answerEach has answered, or an error.
func readEach(a kind.Answer) kind.Verdict {
	v := kind.Standard(a)
	if v.Outcome != kind.Done {
		v.Reason = string(a.Body)
	} else if json.Unmarshal(a.Body, &v.Refused) != nil {
		v.Outcome = kind.Again
	}
	return v
}
