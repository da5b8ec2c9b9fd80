package partnerapi

import (
	"context"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"

	"mtagd/store"
)

const exportPath = "/v1/partners/events/export"

// download reads an export over a connection.
func (c *streamClient) download(p *partner, query, encoding string) (*http.Response, []byte, error) {
	c.t.Helper()
	return c.read(p, "GET", exportPath+query, "", encoding)
}

// read sends a request over a connection and reads the whole answer.
func (c *streamClient) read(p *partner, method, uri, body, encoding string) (*http.Response, []byte, error) {
	c.t.Helper()
	r, err := http.NewRequestWithContext(c.t.Context(), method, "http://api.example.net"+uri, strings.NewReader(body))
	if err != nil {
		c.t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+p.key)
	r.Header.Set("Accept-Encoding", encoding)
	response, err := c.http.Do(r)
	if err != nil {
		return nil, nil, err // the answer was cut off before its first byte
	}
	defer response.Body.Close()
	b, err := io.ReadAll(response.Body)
	return response, b, err
}

func TestExport(t *testing.T) {
	s := newService(t)
	p, other := s.shops(2), s.shops(1)
	second := p.generate(p.ids[0], "server-side", "example.com").str("tagId")
	other.send(0, "Theirs")
	p.send(1, "Neighbour")
	for i := range 2500 {
		day := fmt.Sprintf("2026-11-%02dT12:00:00Z", 1+i%10)
		s.record(p.ids[0], p.tags[0], event{at: day, name: fmt.Sprintf("E%d", i%5), muid: "=1+1", raw: fmt.Sprintf(`{"n":%d}`, i)})
	}
	s.record(p.ids[0], second, event{at: "2026-11-05T00:00:00Z", name: "Second"})
	c := newStreamClient(t, s)

	for _, tt := range []struct {
		is, query string
		want      int
	}{
		{"all events of the merchant", "", 2501},
		{"those of a tag", "&tagId=" + second, 1},
		{"those of another merchant's tag", "&tagId=" + other.tags[0], 0},
		{"those of some names", "&events=E1,E2,Second", 1001},
		{"those of a day", "&startDate=2026-11-05&endDate=2026-11-05", 251},
	} {
		for encoding, decode := range map[string]func(io.Reader) (io.Reader, error){
			"":     func(r io.Reader) (io.Reader, error) { return r, nil },
			"gzip": func(r io.Reader) (io.Reader, error) { return gzip.NewReader(r) },
			"zstd": func(r io.Reader) (io.Reader, error) { return zstd.NewReader(r) },
		} {
			response, body, err := c.download(p.partner, "?merchantId="+p.ids[0]+tt.query, encoding)
			if err != nil || response.StatusCode != 200 || response.Header.Get("Content-Encoding") != encoding {
				t.Fatalf("%s with %q: %s %v, %v", tt.is, encoding, response.Status, response.Header, err)
			}
			plain, err := decode(strings.NewReader(string(body)))
			if err != nil {
				t.Fatal(err)
			}
			last, n := "", 0
			for lines := json.NewDecoder(plain); ; n++ {
				var e struct{ ID, MerchantID string }
				if err := lines.Decode(&e); err == io.EOF {
					break
				} else if err != nil {
					t.Fatal(err)
				}
				if e.ID <= last || e.MerchantID != p.ids[0] {
					t.Errorf("%s: %s of %s comes after %s", tt.is, e.ID, e.MerchantID, last)
				}
				last = e.ID
			}
			if n != tt.want {
				t.Errorf("%s with %q: %d events, want %d", tt.is, encoding, n, tt.want)
			}
		}
	}
	response, body, err := c.download(p.partner, "?format=csv&merchantId="+p.ids[0], "")
	records, csvErr := csv.NewReader(strings.NewReader(string(body))).ReadAll()
	if err := errors.Join(err, csvErr); err != nil || len(records) != 2502 || records[1][3] != "'=1+1" ||
		response.Header.Get("Content-Disposition") != `attachment; filename="events-`+p.ids[0]+`.csv"` {
		t.Errorf("CSV has %d records: %v, %v", len(records), err, response.Header)
	}
	response, body, err = c.download(p.partner, "?format=parquet&merchantId="+p.ids[0], "gzip")
	if err != nil || response.Header.Get("Content-Encoding") != "" || !strings.HasPrefix(string(body), "PAR1") || !strings.HasSuffix(string(body), "PAR1") {
		t.Errorf("Parquet has %d bytes: %v, %v", len(body), err, response.Header)
	}
	if held := s.api.exports.budget.Held(p.ID); held != 0 {
		t.Errorf("%d exports still have their slots", held)
	}

	get := func(query string) answer { return p.get(exportPath + query) }
	get("").invalid("merchantId", "is required")
	get("?merchantId="+p.ids[0]+"&format=xml").invalid("format", "must be one of ndjson, csv, parquet")
	get("?merchantId="+p.ids[0]+"&page=1").invalid("page", "is not a query parameter of this request")
	get("?merchantId="+other.ids[0]).fails(403, "FORBIDDEN", denied)
	get("?merchantId="+nobody).fails(404, "NOT_FOUND", missing)
	get("?merchantId="+p.merchant("Without a tag")).fails(404, "NOT_FOUND", missing+": the merchant has no tag yet")
	for range exportsPerPartner {
		if _, err := s.api.exports.acquire(t.Context(), p.ID); err != nil {
			t.Fatal(err)
		}
	}
	get("?merchantId="+p.ids[0]).fails(429, "SERVICE_ERROR", "Too many requests at once. Please try again")
}

// failingFeed is an engine whose feed fails in the middle.
type failingFeed struct {
	store.Engine
	calls int
}

func (f *failingFeed) Feed(ctx context.Context, q store.FeedQuery, use func(*store.Received) bool) (store.FeedEnd, error) {
	if f.calls++; f.calls > 1 {
		return store.FeedEnd{}, errors.New("the disk failed")
	}
	return f.Engine.Feed(ctx, q, use)
}

// A client must not take the first half of an export for all of it.
func TestAnExportThatFailsIsCutOff(t *testing.T) {
	s := newService(t)
	p := s.shops(1)
	for range 20 {
		s.record(p.ids[0], p.tags[0], make100()...)
	}
	s.serve(&failingFeed{Engine: s.engine}, &s.dns)
	c := newStreamClient(t, s)
	_, body, err := c.download(p.partner, "?merchantId="+p.ids[0], "")
	if err == nil || len(body) == 0 {
		t.Errorf("the client got %d bytes and the error %v", len(body), err)
	}
	if !strings.Contains(s.log.String(), "the disk failed") {
		t.Errorf("the log has no cause: %s", s.log.String())
	}
}

// unreadable is an engine none of whose events can be read.
type unreadable struct{ store.Engine }

var errUnreadable = store.Unavailable("events are missing")

func (unreadable) Feed(context.Context, store.FeedQuery, func(*store.Received) bool) (store.FeedEnd, error) {
	return store.FeedEnd{}, errUnreadable
}

func (unreadable) PersonalData(context.Context, store.MerchantID, store.Identity, bool, func(*store.PersonalRecord) error) (int, error) {
	return 0, errUnreadable
}

// An answer that fails before its first byte is an error like any other, in every format and encoding.
func TestAnExportThatCannotBeginIsAnError(t *testing.T) {
	s := newService(t)
	p := s.shops(1)
	s.serve(unreadable{s.engine}, &s.dns)
	c := newStreamClient(t, s)
	check := func(response *http.Response, body []byte, err error) {
		t.Helper()
		if err != nil || response.StatusCode != 503 || !strings.Contains(string(body), `"code":"SERVICE_ERROR","statusCode":503`) ||
			response.Header.Get("Content-Encoding")+response.Header.Get("Content-Disposition") != "" || response.Header.Get("Retry-After") == "" {
			t.Errorf("the client got %+v, %s, %v", response, body, err)
		}
	}
	for _, format := range []string{"ndjson", "csv", "parquet"} {
		check(c.download(p.partner, "?format="+format+"&merchantId="+p.ids[0], "zstd"))
	}
	check(c.read(p.partner, "POST", "/v1/partners/personal-data", fmt.Sprintf(`{"merchantId":%q,"muid":"x"}`, p.ids[0]), ""))
	if held := s.api.exports.budget.Held(p.ID) + s.api.readings.budget.Held(p.ID); held != 0 {
		t.Errorf("%d answers still have their slots", held)
	}
}

// interrupted is an engine that does something before its second read of the feed.
type interrupted struct {
	store.Engine
	calls     int
	interrupt func()
}

func (e *interrupted) Feed(ctx context.Context, q store.FeedQuery, use func(*store.Received) bool) (store.FeedEnd, error) {
	if e.calls++; e.calls == 2 {
		e.interrupt()
	}
	return e.Engine.Feed(ctx, q, use)
}

// interruptedExport returns what a client gets of an export of 2000 events when something happens after the first batch.
func interruptedExport(t *testing.T, happens func(s *service, p *shops)) (s *service, lines int, err error) {
	t.Helper()
	s = newService(t)
	p := s.shops(1)
	for range 20 {
		s.record(p.ids[0], p.tags[0], make100()...)
	}
	s.serve(&interrupted{Engine: s.engine, interrupt: func() { happens(s, p) }}, &s.dns)
	_, body, err := newStreamClient(t, s).download(p.partner, "?merchantId="+p.ids[0], "")
	return s, strings.Count(string(body), "\n"), err
}

func TestAnExportOfAMerchantThatIsDeletedIsCutOff(t *testing.T) {
	_, lines, err := interruptedExport(t, func(s *service, p *shops) {
		if _, err := s.engine.DeleteMerchant(context.Background(), store.MerchantID(p.ids[0])); err != nil {
			t.Error(err)
		}
	})
	if err == nil {
		t.Errorf("the client got %d of 2000 lines as a complete file", lines)
	}
}

func TestAnExportWhoseKeyIsRevokedIsCutOff(t *testing.T) {
	_, lines, err := interruptedExport(t, func(s *service, p *shops) {
		id, err := store.APIKey(p.key).ID()
		if err == nil {
			_, err = s.engine.RevokeKey(context.Background(), id, true)
		}
		if err != nil {
			t.Error(err)
		}
	})
	if err == nil {
		t.Errorf("the client got %d of 2000 lines as a complete file", lines)
	}
}

func make100() []event {
	var list []event
	for range 100 {
		list = append(list, event{at: "2026-11-01T00:00:00Z", name: "A"})
	}
	return list
}
