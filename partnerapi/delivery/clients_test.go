package delivery

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io/fs"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"mtagd/partnerapi/delivery/kind"
	"mtagd/store"
)

const (
	visitorIP    = "203.0.113.77"
	visitorAgent = "Mozilla/5.0 (Seldom/1.0) <x>"
)

// browse records an event of a browser, and returns what is known of the browser.
func (b *bed) browse(muid, fields string) (sealed []byte) {
	return b.browseBy(visitorAgent, muid, fields)
}

func (b *bed) browseBy(agent, muid, fields string) (sealed []byte) {
	b.t.Helper()
	b.deliverClientDetails(true)
	b.until("there is a key", func() bool {
		sealed = b.s.Seal(b.m.ID, netip.MustParseAddr(visitorIP), []byte(agent))
		return sealed != nil
	})
	b.record(sealed, muid, fields)
	return sealed
}

// record records an event with what is known of the browser.
func (b *bed) record(sealed []byte, muid, fields string) {
	b.t.Helper()
	b.n++
	raw := fmt.Sprintf(`{"event":"Lead","event_id":%q,"n":%d%s}`, muid, b.n, agreed+fields)
	marks := []store.Mark{{Merchant: b.m.ID, Tag: b.tag, Identity: store.Identity{MUID: store.MUID(muid)}, Name: "Lead", Time: time.Now(), Raw: []byte(raw), Details: store.Details{Client: sealed}}}
	if err := b.engine.Record(b.t.Context(), marks); err != nil {
		b.t.Fatal(err)
	}
}

func (b *bed) deliverClientDetails(on bool) {
	b.t.Helper()
	if _, err := b.engine.UpdateMerchant(b.t.Context(), b.m.ID, func(m store.Merchant) store.Merchant { m.DeliverClientDetails = on; return m }); err != nil {
		b.t.Fatal(err)
	}
}

// echoing is Meta, and refuses events of the visitor "refused" by an answer that has what is known of the browser.
func echoing(r *http.Request, body map[string]any) (int, string, []string) {
	text, _ := json.Marshal(body)
	if bytes.Contains(text, []byte(`"refused"`)) {
		return 400, fmt.Sprintf(`{"error":{"message":"not from %s, %s","code":100}}`, visitorIP, strings.ReplaceAll(visitorAgent, "/", `\/`)), nil
	}
	return fakeMeta(r, body)
}

func TestAdPlatformsGetWhatIsKnownOfBrowsers(t *testing.T) {
	b, p, s := newBed(t), newPlatform(t, echoing), newSink(t)
	if b.s.Seal(b.m.ID, netip.MustParseAddr(visitorIP), nil) != nil {
		t.Error("it is taken without a destination")
	}
	hook := b.create(s.URL, nil)
	d := b.createPlatform("meta", fmt.Sprintf(`{"pixelId":"123456","endpoint":%q}`, p.URL), map[string]string{"accessToken": "right"})
	sealed := b.browse("m1", `,"pageUrl":"https://shop.example/"`)
	b.until("delivered", func() bool { return b.status(d).Delivered == 1 && b.status(hook).Delivered == 1 })
	var sent struct {
		Data []struct {
			User kind.Browser `json:"user_data"`
		}
	}
	body := strings.NewReplacer("client_ip_address", "address", "client_user_agent", "userAgent").Replace(p.body)
	if err := json.Unmarshal([]byte(body), &sent); err != nil || sent.Data[0].User != (kind.Browser{Address: visitorIP, UserAgent: visitorAgent}) {
		t.Errorf("Meta got %s, %v", p.body, err)
	}
	if hooked := string(s.all()[0].body); strings.Contains(hooked, visitorIP) || strings.Contains(hooked, "Seldom") || strings.Contains(strings.ToLower(hooked), "client") {
		t.Errorf("the webhook got %s", hooked)
	}
	if b.s.Browser("another", sealed) != (kind.Browser{}) || b.s.Browser(b.m.ID, sealed[:len(sealed)-1]) != (kind.Browser{}) {
		t.Error("it is read for another merchant, or damaged")
	}
	for _, previews := range [][]Preview{must(b.s.Preview(t.Context(), d, "", false)), must(b.s.Preview(t.Context(), d, "", true))} {
		if text := fmt.Sprintf("%+v", previews); strings.Contains(text, visitorIP) || strings.Contains(text, "Seldom") || !strings.Contains(string(previews[0].Body), `"client_ip_address":"…"`) {
			t.Errorf("the preview is %s of %s", text, previews[0].Body)
		}
	}
	b.browse("refused", `,"pageUrl":"https://shop.example/"`)
	b.until("refused", func() bool { return b.status(d).Dead == 1 })
	letters := must(b.s.Deliveries(t.Context(), d, "", ""))
	if text := fmt.Sprintf("%+v %+v", letters, b.status(d)); strings.Contains(text, visitorIP) || strings.Contains(text, "Seldom") || !strings.Contains(text, "not from …") {
		t.Errorf("the deliveries are %s", text)
	}
	b.change(d, Change{Paused: new(true)})
	if b.s.Seal(b.m.ID, netip.MustParseAddr(visitorIP), nil) != nil {
		t.Error("it is taken for a paused destination")
	}
	b.close()
	// What a backup may have: neither it, nor its keys.
	keys := must(os.ReadFile(b.keys.path + ".hours"))
	for _, dir := range []string{b.dir, filepath.Dir(b.keys.path)} {
		if err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
			if err != nil || e.IsDir() {
				return err
			}
			text := must(os.ReadFile(path))
			if bytes.Contains(text, []byte(visitorIP)) || bytes.Contains(text, []byte("Seldom")) || dir == b.dir && bytes.Contains(text, keys[:20]) {
				t.Errorf("%s has it", path)
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Remove(b.keys.path + ".hours"); err != nil {
		t.Fatal(err)
	}
	b.open() // as after a backup was restored
	if got := b.s.Browser(b.m.ID, sealed); got != (kind.Browser{}) {
		t.Errorf("after a restore it can still be read: %+v", got)
	}
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// After 72 hours nothing can read it, and a later delivery goes without.
func TestWhatIsKnownOfBrowsersEnds(t *testing.T) {
	b, p := newBed(t), newPlatform(t, fakeMeta)
	d := b.createPlatform("meta", fmt.Sprintf(`{"pixelId":"123456","endpoint":%q}`, p.URL), map[string]string{"accessToken": "wrong"})
	sealed := b.browse("m1", "")
	readable := func() bool { return b.s.Browser(b.m.ID, sealed) != (kind.Browser{}) }
	began := time.Now()
	b.ahead.Store(int64(71*time.Hour - time.Duration(began.Minute())*time.Minute - time.Minute)) // within the last hour but one
	if !readable() {
		t.Error("it cannot be read after 70 hours")
	}
	b.close()
	b.open()
	b.until("it can be read after a restart", readable)
	hours := func() string { return string(must(os.ReadFile(b.keys.path + ".hours"))) }
	first, _, _ := strings.Cut(hours(), "\n")
	b.ahead.Store(int64(store.ClientLife))
	if readable() {
		t.Error("it can be read after 72 hours")
	}
	b.until("its key is destroyed", func() bool { return !strings.Contains(hours(), first) })
	b.until("there is a key of now", func() bool { return hours() != "" })
	ofTheFuture := hours()
	b.change(d, Change{Secrets: map[string]string{"accessToken": "right"}})
	b.until("delivered", func() bool { return b.status(d).Delivered == 1 })
	if strings.Contains(p.body, "client_") {
		t.Errorf("Meta got %s", p.body)
	}
	b.ahead.Store(0)
	if readable() {
		t.Error("its key was kept")
	}
	b.until("a key of the future is destroyed", func() bool { return hours() != "" && !strings.Contains(hours(), ofTheFuture) })
	b.close()
	if err := os.WriteFile(b.keys.path+".hours", []byte("damaged\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	b.open()
	b.browse("m2", "") // by a new key
}

// What every destination has got, nothing can read two hours later.
func TestWhatIsKnownOfBrowsersEndsWithItsDelivery(t *testing.T) {
	b, p := newBed(t), newPlatform(t, fakeMeta)
	settings := fmt.Sprintf(`{"pixelId":"123456","endpoint":%q}`, p.URL)
	d := b.createPlatform("meta", settings, map[string]string{"accessToken": "right"})
	failing := b.createPlatform("meta", settings, map[string]string{"accessToken": "wrong"})
	sealed := b.browse("m1", `,"pageUrl":"https://shop.example/"`)
	b.until("delivered", func() bool { return b.status(d).Delivered == 1 && b.status(failing).Word == "failing" })
	keys := func() int { return strings.Count(string(must(os.ReadFile(b.keys.path+".hours"))), "\n") }
	b.ahead.Store(int64(2 * time.Hour))
	b.until("there is a key of now", func() bool { return keys() == 2 })
	if b.s.Browser(b.m.ID, sealed) == (kind.Browser{}) {
		t.Error("it is gone before the other destination has it")
	}
	if err := b.s.Delete(t.Context(), b.m, failing.ID); err != nil {
		t.Fatal(err)
	}
	b.ahead.Store(int64(3 * time.Hour))
	b.until("it is gone", func() bool { return b.s.Browser(b.m.ID, sealed) == (kind.Browser{}) && keys() == 2 }) // of the last two hours
}

// What the visitor's browser calls itself changes nothing of what the platform answers; it is hidden in every form.
func TestUserAgentsAreChosenByStrangers(t *testing.T) {
	b := newBed(t)
	p := newPlatform(t, func(*http.Request, map[string]any) (int, string, []string) {
		return 200, `{"code":0,"message":"OK"}`, []string{"taken"}
	})
	d := b.createPlatform("tiktok", fmt.Sprintf(`{"pixelCode":"COQDA8RC77U2TMR44LI0","endpoint":%q}`, p.URL), map[string]string{"accessToken": "right"})
	b.browseBy("0", "m", `,"pageUrl":"https://shop.example/"`)
	b.until("it is delivered", func() bool { return b.status(d).Delivered == 1 })
	known := []*kind.Event{{Browser: kind.Browser{UserAgent: `a "b"`}}}
	if got := mask(known)(`{"error":"not a \"b\", a "b""}`); got != `{"error":"not …, …"}` {
		t.Error(got)
	}
}

// What was taken while the merchant wanted it goes nowhere when he does not any more.
func TestClientDetailsAreSwitchedOff(t *testing.T) {
	b, p := newBed(t), newPlatform(t, fakeMeta)
	d := b.createPlatform("meta", fmt.Sprintf(`{"pixelId":"123456","endpoint":%q}`, p.URL), map[string]string{"accessToken": "wrong"})
	b.browse("m1", `,"pageUrl":"https://shop.example/","user_agent":"Mozilla/5.0"`)
	b.until("it is refused", func() bool { return b.status(d).LastError != nil })
	b.deliverClientDetails(false)
	b.change(d, Change{Secrets: map[string]string{"accessToken": "right"}})
	b.until("delivered", func() bool { return b.status(d).Delivered == 1 })
	if strings.Contains(p.body, visitorIP) || !strings.Contains(p.body, "client_user_agent") {
		t.Errorf("Meta got %s", p.body)
	}
}

// So it is within a round: here between a request that is refused and its halves.
func TestClientDetailsAreSwitchedOffInARound(t *testing.T) {
	b := newBed(t)
	var sent []bool // with client details; guarded by the platform's mu
	p := newPlatform(t, func(r *http.Request, body map[string]any) (int, string, []string) {
		text := must(json.Marshal(body))
		sent = append(sent, bytes.Contains(text, []byte(visitorIP)))
		if len(body["data"].([]any)) == 1 {
			return fakeMeta(r, body)
		}
		if _, err := b.engine.UpdateMerchant(t.Context(), b.m.ID, func(m store.Merchant) store.Merchant { m.DeliverClientDetails = false; return m }); err != nil {
			t.Error(err)
		}
		return 400, `{"error":{"message":"one event is wrong","code":100}}`, nil
	})
	d := b.createPlatform("meta", fmt.Sprintf(`{"pixelId":"123456","endpoint":%q}`, p.URL), map[string]string{"accessToken": "right"})
	const fields = `,"pageUrl":"https://shop.example/","user_agent":"Mozilla/5.0"`
	sealed := b.browse("m", fields)
	b.until("the first is delivered", func() bool { return b.status(d).Delivered == 1 })
	pause := func(is bool) {
		b.change(d, Change{Paused: &is})
	}
	pause(true) // so it reads the next two at once
	b.record(sealed, "m", fields)
	b.record(sealed, "m", fields)
	end, sh := must(b.engine.Latest(t.Context())), b.shard()
	b.until("the shard has read them", func() bool { sh.mu.Lock(); defer sh.mu.Unlock(); return sh.head >= end })
	pause(false)
	b.until("all are delivered", func() bool { return b.status(d).Delivered == 3 })
	p.mu.Lock()
	defer p.mu.Unlock()
	if want := []bool{true, true, false, false}; !slices.Equal(sent, want) {
		t.Errorf("requests with client details: %v, want %v", sent, want)
	}
}

// All kinds that name it take it, and no others.
func TestWhoTakesWhatIsKnownOfBrowsers(t *testing.T) {
	var names []string
	for _, k := range Kinds() {
		if k.Client {
			names = append(names, k.Name)
		}
		if k.Client && len(k.Consent) == 0 {
			t.Errorf("%s takes it without consent", k.Name)
		}
	}
	if got := strings.Join(names, " "); got != "meta googleads ga4 tiktok microsoft pinterest snap linkedin" {
		t.Errorf("%s take it", got)
	}
	b := newBed(t)
	for event, want := range map[string]bool{`{}`: false, `{"consent":true}`: true, `{"consent":false}`: false, `{` + agreed[1:] + `}`: true, `{`: false,
		`{"consent":{"ad_storage":"granted"}}`: false, `{"consent":{"ad_storage":"granted","ad_user_data":"denied"}}`: false} {
		if got := b.s.MayTake([]byte(event)); got != want {
			t.Errorf("%s: %v", event, got)
		}
	}
}
