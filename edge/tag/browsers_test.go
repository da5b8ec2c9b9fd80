package tag

import (
	"bytes"
	"fmt"
	"net"
	"net/netip"
	"testing"

	"mtagd/store"
)

// browsers is a Browsers that encrypts nothing.
type browsers struct{}

func (browsers) Seal(m store.MerchantID, address netip.Addr, userAgent []byte) []byte {
	return fmt.Appendf(nil, "%s %s %s", m, address, userAgent)
}

func (browsers) MayTake(event []byte) bool { return bytes.Contains(event, []byte("agreed")) }

func TestWhatIsKnownOfBrowsers(t *testing.T) {
	w := newWorld(t, func(c *Config) { c.Browsers = browsers{} })
	const visit, other = `{"muid":"m","event":"Visit","consent":"agreed"}`, `{"muid":"m","event":"Visit"}`
	known := func() (all []string) {
		if _, err := w.Engine.Feed(t.Context(), store.FeedQuery{Merchants: []store.MerchantID{w.Merchant}}, func(e *store.Received) bool {
			all = append(all, string(e.Client))
			return true
		}); err != nil {
			t.Fatal(err)
		}
		return all
	}
	send := func(body string, headers ...string) {
		t.Helper()
		ctx := newContext()
		ctx.SetRemoteAddr(&net.TCPAddr{IP: net.ParseIP("2001:db8::1:2"), Port: 7})
		if r := w.serve(ctx, "POST", clientHost, "/mark/"+string(w.Client.ID), body, append(headers, "User-Agent", "Browser/1")...); r.Status/100 != 2 {
			t.Fatalf("%+v", r)
		}
	}
	page := []string{"Origin", "https://shop.example"}
	send(visit, page...) // it is off
	if _, err := w.Engine.UpdateMerchant(t.Context(), w.Merchant, func(m store.Merchant) store.Merchant {
		m.DeliverClientDetails = true
		return m
	}); err != nil {
		t.Fatal(err)
	}
	send(visit, page...)
	send(other, page...)
	send(visit) // a backend
	send("["+visit+","+other+"]", page...)
	want := fmt.Sprint([]string{"", fmt.Sprintf("%s 2001:db8::1:2 Browser/1", w.Merchant), "", "", fmt.Sprintf("%s 2001:db8::1:2 Browser/1", w.Merchant), ""})
	if got := fmt.Sprint(known()); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}
