package sinks

import (
	"net/http"
	"net/url"
	"strings"
	"time"

	"mtagd/partnerapi/delivery/kind"
	"mtagd/store"
)

// clickHouse is a table that is filled over ClickHouse's HTTP interface (https://clickhouse.com/docs/interfaces/http, read
// 2026-11).
type clickHouse struct {
	URL      string `json:"url"`
	Database string `json:"database"`
	Table    string `json:"table"`
	User     string `json:"user"`

	password string
}

func openClickHouse(o kind.Options) (kind.Target, error) {
	t := &clickHouse{Database: "default", Table: "events", User: "default", password: o.Secret("password")}
	if err := o.Decode(t); err != nil {
		return nil, err
	}
	if err := o.CheckURL("url", t.URL); err != nil {
		return nil, err
	}
	if !isName(t.Database) {
		return nil, store.Invalid("settings.database", "must be a name")
	}
	if t.User == "" || strings.ContainsFunc(t.User+t.password, func(r rune) bool { return r < ' ' || r > '~' }) {
		return nil, store.Invalid("settings.user", "must be printable ASCII, like the password")
	}
	return t, checkTable(t.Table)
}

func (t *clickHouse) Limits() kind.Limits { return limits(time.Second) }

func (t *clickHouse) Requests(events []*kind.Event, _ time.Time) ([]kind.Request, []kind.Refusal) {
	query := url.Values{
		"database": {t.Database}, "query": {"INSERT INTO " + t.Table + " FORMAT JSONEachRow"},
		"insert_deduplication_token": {token(events)}, "wait_end_of_query": {"1"},
		"date_time_input_format": {"best_effort"}, "input_format_skip_unknown_fields": {"1"}, "input_format_json_read_objects_as_strings": {"1"},
	}
	body, _ := lines(events)
	header := http.Header{"X-Clickhouse-User": {t.User}, "X-Clickhouse-Key": {t.password}}
	return []kind.Request{{URL: strings.TrimRight(t.URL, "/") + "/?" + query.Encode(), Header: header, Body: body, Events: all(len(events))}}, nil
}

func (t *clickHouse) Read(_ kind.Request, a kind.Answer) kind.Verdict {
	v := kind.Standard(a)
	if v.Outcome != kind.Done {
		v.Reason = strings.TrimSpace(string(a.Body[:min(len(a.Body), 200)]))
	}
	return v
}
