package sinks

import (
	"net/http"
	"net/url"
	"strings"
	"time"

	"mtagd/partnerapi/delivery/kind"
)

// clickHouse is a table that is filled over ClickHouse's HTTP interface (https://clickhouse.com/docs/interfaces/http, read
// 2026-11).
type clickHouse struct {
	common
	url, database, table, user, password string
}

func openClickHouse(o kind.Options, v kind.Values) (kind.Target, error) {
	t := &clickHouse{common{}, v.Text("url"), v.Text("database"), v.Text("table"), v.Text("user"), o.Secret("password")}
	return t, o.CheckURL("url", t.url)
}

func (t *clickHouse) Requests(events []*kind.Event, _ time.Time) ([]kind.Request, []kind.Refusal) {
	query := url.Values{
		"database": {t.database}, "query": {"INSERT INTO " + t.table + " FORMAT JSONEachRow"},
		"insert_deduplication_token": {token(events)}, "wait_end_of_query": {"1"},
		"date_time_input_format": {"best_effort"}, "input_format_skip_unknown_fields": {"1"}, "input_format_json_read_objects_as_strings": {"1"},
	}
	body, _ := lines(events)
	header := http.Header{"X-Clickhouse-User": {t.user}, "X-Clickhouse-Key": {t.password}}
	return []kind.Request{{URL: strings.TrimRight(t.url, "/") + "/?" + query.Encode(), Header: header, Body: body, Events: events}}, nil
}
