package export

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"mtagd/store"
)

// randomEvents returns n events, some of them hard to write.
func randomEvents(n int) []store.Received {
	r := rand.New(rand.NewPCG(1, 2))
	hard := []string{"", `"`, ",", "\n", "\r\n", `\`, "=1+1", "'", "ü€😀", "\x00", ";", "a,b\"c\nd", "\u2028"}
	events := make([]store.Received, n)
	for i := range events {
		muid := fmt.Sprintf("user-%d", r.IntN(1000))
		if i%7 == 0 {
			muid = hard[r.IntN(len(hard))] + muid
		}
		if i%11 == 0 {
			muid = []string{"=cmd|' /C calc'!A0", "+49170", "-1", "@SUM(A1)", "\t=1"}[r.IntN(5)]
		}
		text := hard[r.IntN(len(hard))]
		quoted := AppendString(nil, text)
		events[i] = store.Received{
			Event: store.Event{
				ID: store.EventID(fmt.Sprintf("evt_%016d", i)), MUID: store.MUID(muid), Name: []string{"PageView", "Purchase"}[r.IntN(2)],
				Time: time.UnixMicro(1.76e15 + r.Int64N(1e15)).UTC(),
				Bot:  r.IntN(4) == 0,
				Raw:  fmt.Appendf(nil, "{\"n\":%d,\r\n \"text\":%s}", i, quoted),
			},
			Merchant: store.MerchantID(fmt.Sprintf("0b2e8a52-5d3c-4f4e-9d3a-%012d", r.IntN(3))), Tag: "cs_x",
			ReceivedAt: time.UnixMicro(1.77e15 + int64(i)).UTC(),
		}
	}
	return events
}

// write returns a file with these events.
func write(t testing.TB, f Format, events []store.Received) []byte {
	t.Helper()
	var b bytes.Buffer
	w := NewWriter(f, &b)
	for i := range events {
		if err := w.Write(&events[i]); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func BenchmarkWriter(b *testing.B) {
	events := randomEvents(10_000)
	for i := range events {
		events[i].Raw = fmt.Appendf(nil, `{"event":"PageView","muid":"0b2e8a52-5d3c-4f4e-9d3a-0a7c3c0f5a%02x","pageUrl":"https://shop.example.com/products/%d","pageTitle":"%s","language":"en-US","screen":"1920x1080","timezone":"Europe/Berlin"}`, i%256, i, strings.Repeat("Shoe ", 10))
	}
	for _, f := range Formats {
		b.Run(f, func(b *testing.B) {
			var out bytes.Buffer
			w := NewWriter(Format(f), &out)
			for i := 0; b.Loop(); i++ {
				if err := w.Write(&events[i%len(events)]); err != nil {
					b.Fatal(err)
				}
				if out.Len() > 1<<20 {
					out.Reset()
				}
			}
		})
	}
}
