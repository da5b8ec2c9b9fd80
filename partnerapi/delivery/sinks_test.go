package delivery

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/parquet/file"
	"github.com/jackc/pgx/v5"
	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"

	"mtagd/store"
	"mtagd/store/pgtest"
)

// sinkBed is a bed with a destination that is a sink of the partner's own.
func sinkBed(t *testing.T, kind, secret string, settings map[string]any) (*bed, Destination) {
	b := newBed(t)
	text := must(json.Marshal(settings))
	return b, b.create("", func(c *Change) {
		c.Type, c.Settings, c.Secrets = &kind, text, map[string]string{secret: "secret"}
	})
}

func TestPostgreSQLHasEachEventOnce(t *testing.T) {
	server := pgtest.NewServerWith(t, pgtest.Options{TCP: true})
	c := must(pgx.Connect(t.Context(), server.URL("postgres")))
	t.Cleanup(func() { _ = c.Close(t.Context()) })
	config := c.Config()
	b, d := sinkBed(t, "postgresql", "password", map[string]any{
		"host": fmt.Sprint("127.0.0.1:", config.Port), "database": config.Database, "user": config.User, "table": "shop_events", "withoutTLS": true,
	})
	for range 3 {
		b.send("m", "Purchase", `,"value":89.5`)
	}
	b.send("m\x00", "Purchase", `,"text":"\u0000"`) // which PostgreSQL does not take
	b.send("m", "Purchase", "")
	b.until("all but one", func() bool { st := b.status(d); return st.Delivered == 4 && st.Dead == 1 })
	from := time.Now().Add(-time.Hour)
	b.replay(d, Replay{From: &from})
	b.until("all again", func() bool { st := b.status(d); return st.Delivered == 8 && st.Dead == 2 })
	var rows, sum int
	var value float64
	if err := c.QueryRow(t.Context(), `SELECT count(*), sum((raw_data->>'n')::int), sum((raw_data->>'value')::float) FROM shop_events
		WHERE muid = 'm' AND merchant_id = $1 AND event_time <= received_at + interval '1 minute'`, string(b.m.ID)).Scan(&rows, &sum, &value); err != nil {
		t.Fatal(err)
	}
	if rows != 4 || sum != 1+2+3+5 || value != 3*89.5 {
		t.Errorf("%d rows, numbers %d, values %v", rows, sum, value)
	}

	// The table was made by a version without the fields that come last.
	if _, err := c.Exec(t.Context(), "ALTER TABLE shop_events DROP COLUMN is_bot, DROP COLUMN raw_data"); err != nil {
		t.Fatal(err)
	}
	b.send("m", "Purchase", "")
	b.until("with the columns", func() bool { return b.status(d).Delivered == 9 })
	if err := c.QueryRow(t.Context(), "SELECT count(*) FROM shop_events WHERE NOT is_bot AND raw_data->>'event' = 'Purchase'").Scan(&rows); err != nil || rows != 1 {
		t.Errorf("%d rows have the new columns, %v", rows, err)
	}
}

// A server of a merchant must not fill the memory.
func TestAHostilePostgreSQL(t *testing.T) {
	status := pgStatus("name", strings.Repeat("x", 1000))
	for name, messages := range map[string]func(n int) []byte{
		"a message that is too long": func(int) []byte { return []byte{'S', 0x3f, 0, 0, 0} },
		"without end":                func(n int) []byte { return slices.Concat(status, pgStatus(fmt.Sprint(n), "x")) },
	} {
		t.Run(name, func(t *testing.T) {
			l := serve(t, func(c net.Conn) {
				_, err := c.Write([]byte{'R', 0, 0, 0, 8, 0, 0, 0, 0}) // AuthenticationOk
				for n := 0; err == nil; n++ {
					_, err = c.Write(messages(n))
				}
			})
			b, d := sinkBed(t, "postgresql", "password", map[string]any{"host": l.Addr().String(), "database": "d", "user": "u", "withoutTLS": true})
			b.send("m", "Purchase", "")
			b.until("it fails", func() bool { return b.status(d).LastError != nil })
			if why := *b.status(d).LastError; !strings.Contains(why, "too long") && !strings.Contains(why, "at most") {
				t.Error(why)
			}
		})
	}
}

// pgStatus is a ParameterStatus.
func pgStatus(name, value string) []byte {
	text := name + "\x00" + value + "\x00"
	return append(binary.BigEndian.AppendUint32([]byte{'S'}, uint32(len(text)+4)), text...)
}

// fakeClickHouse takes inserts of the table events, and drops those whose token it knows.
type fakeClickHouse struct {
	mu      sync.Mutex
	rows    []int
	tokens  map[string]bool
	fail    bool // after a request was taken
	refused string
}

func (f *fakeClickHouse) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	q := r.URL.Query()
	if r.Header.Get("X-ClickHouse-User") != "default" || r.Header.Get("X-ClickHouse-Key") != "secret" {
		http.Error(w, "Code: 516. DB::Exception: default: Authentication failed", http.StatusForbidden)
		return
	}
	if q.Get("query") != "INSERT INTO events FORMAT JSONEachRow" || q.Get("database") != "shop" {
		http.Error(w, "Code: 60. DB::Exception: Unknown table", http.StatusNotFound)
		return
	}
	var rows []int
	for d := json.NewDecoder(r.Body); ; {
		var row struct {
			ID string          `json:"id"`
			Of struct{ N int } `json:"raw_data"`
		}
		if err := d.Decode(&row); err == io.EOF {
			break
		} else if err != nil || row.ID == "" {
			http.Error(w, "Code: 27. DB::Exception: Cannot parse input", http.StatusBadRequest)
			return
		}
		if fmt.Sprint(row.Of.N) == f.refused {
			http.Error(w, "Code: 27. DB::Exception: Cannot parse input", http.StatusBadRequest)
			return
		}
		rows = append(rows, row.Of.N)
	}
	if token := q.Get("insert_deduplication_token"); token == "" || !f.tokens[token] {
		f.tokens[token] = true
		f.rows = append(f.rows, rows...)
	}
	if f.fail {
		f.fail = false
		http.Error(w, "Code: 159. DB::Exception: Timeout exceeded", http.StatusInternalServerError)
	}
}

func TestClickHouseDropsRepeats(t *testing.T) {
	f := &fakeClickHouse{tokens: map[string]bool{}, fail: true, refused: "3"}
	s := httptest.NewServer(f)
	t.Cleanup(s.Close)
	b, d := sinkBed(t, "clickhouse", "password", map[string]any{"url": s.URL, "database": "shop"})
	b.send("m", "Purchase", "")
	b.until("the first, whose answer was an error", func() bool { return b.status(d).Delivered == 1 })
	for range 4 {
		b.send("m", "Purchase", "")
	}
	b.until("all but one", func() bool { st := b.status(d); return st.Delivered == 4 && st.Dead == 1 })
	f.mu.Lock()
	defer f.mu.Unlock()
	if !slices.Equal(f.rows, []int{1, 2, 4, 5}) {
		t.Errorf("rows %v", f.rows)
	}
}

func TestS3HasFilesOfParquet(t *testing.T) {
	backend := s3mem.New()
	if err := backend.CreateBucket("shop"); err != nil {
		t.Fatal(err)
	}
	s := httptest.NewServer(gofakes3.New(backend).Server())
	t.Cleanup(s.Close)
	b, d := sinkBed(t, "s3", "secretAccessKey", map[string]any{"endpoint": s.URL, "bucket": "shop", "prefix": "events/", "accessKeyId": "id"})
	marks := make([]store.Mark, 1000) // as many as go at once
	for i := range marks {
		marks[i] = store.Mark{Merchant: b.m.ID, Tag: b.tag, Identity: store.Identity{MUID: "m"}, Name: "Purchase", Time: time.Now(), Raw: []byte(`{"event":"Purchase"}`)}
	}
	first := time.Now().Add(-time.Hour)
	marks[0].Time = first
	if err := b.engine.Record(t.Context(), marks); err != nil {
		t.Fatal(err)
	}
	b.until("all", func() bool { return b.status(d).Delivered == 1000 })
	// What is sent again does not replace a file that has more.
	b.replay(d, Replay{To: &first})
	b.until("the first again", func() bool { return b.status(d).Delivered == 1001 })
	list := must(backend.ListBucket("shop", &gofakes3.Prefix{HasPrefix: true, Prefix: "events/date="}, gofakes3.ListBucketPage{}))
	rows := int64(0)
	for _, of := range list.Contents {
		if hour := time.Now().UTC().Format("events/date=2006-01-02/hour="); !strings.HasPrefix(of.Key, hour[:15]) || !strings.HasSuffix(of.Key, ".parquet") {
			t.Errorf("a file %s", of.Key)
		}
		object := must(backend.GetObject("shop", of.Key, nil))
		content := must(io.ReadAll(object.Contents))
		p := must(file.NewParquetReader(bytes.NewReader(content)))
		rows += p.NumRows()
	}
	if rows != 1001 {
		t.Errorf("%d rows in %d files", rows, len(list.Contents))
	}
}

func TestSettingsOfSinks(t *testing.T) {
	b := newBed(t)
	for settings, field := range map[string]string{
		`postgresql {"host":"/var/run","user":"u","database":"d"}`:                   "settings.host",
		`postgresql {"host":"h","user":"u","database":"d","table":"a;b"}`:            "settings.table",
		`postgresql {"host":"h","user":"u","database":"d","x":1}`:                    "settings.x",
		`clickhouse {"url":"file:///etc"}`:                                           "settings.url",
		`clickhouse {"url":"https://h","table":"a b"}`:                               "settings.table",
		`clickhouse {"url":"https://h","user":"a\nb"}`:                               "settings.user",
		`nats {"host":"h/x"}`:                                                        "settings.host",
		`nats {"host":"h","subject":"a.>"}`:                                          "settings.subject",
		`kafka {"brokers":"h,","user":"u"}`:                                          "settings.brokers",
		`kafka {"brokers":"h","user":"u","topic":"a/b"}`:                             "settings.topic",
		`kafka {"brokers":"h","user":"u","mechanism":"x"}`:                           "settings.mechanism",
		`kafka {"brokers":"h"}`:                                                      "settings.user",
		`s3 {"endpoint":"https://h?x","bucket":"b","accessKeyId":"a"}`:               "settings.endpoint",
		`s3 {"endpoint":"https://h","bucket":"b","accessKeyId":"a","prefix":"../x"}`: "settings.prefix",
		`s3 {"endpoint":"https://h","bucket":"b?c","accessKeyId":"a"}`:               "settings.bucket",
		`nats {"host":"h","Host":"evil"}`:                                            "settings.host",
	} {
		name, text, _ := strings.Cut(settings, " ")
		secret := map[string]string{"s3": "secretAccessKey"}[name]
		if secret == "" {
			secret = "password"
		}
		_, _, err := b.s.Create(t.Context(), b.m, Change{Type: &name, Settings: json.RawMessage(text), Secrets: map[string]string{secret: "x"}})
		if err == nil || !strings.Contains(fmt.Sprint(err), field) {
			t.Errorf("%s gives %v, want an error of %s", settings, err, field)
		}
	}
}

// serve serves each connection to a port of this machine until the test ends.
func serve(t *testing.T, each func(c net.Conn)) net.Listener {
	l := must(net.Listen("tcp", "127.0.0.1:0"))
	var serving sync.WaitGroup
	t.Cleanup(serving.Wait)
	t.Cleanup(func() { l.Close() })
	serving.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			serving.Go(func() {
				defer c.Close()
				each(c)
			})
		}
	})
	return l
}
