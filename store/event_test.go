package store

import (
	"strings"
	"testing"
	"time"
)

func TestEventNamesArePascalCase(t *testing.T) {
	longest := "A" + strings.Repeat("b", MaxEventNameLength-1)
	for _, name := range []string{"A", "Purchase", "AddToCart", "A1", "URL", longest} {
		if !IsEventName(name) {
			t.Errorf("%q is refused", name)
		}
	}
	for _, name := range []string{
		"", "purchase", "1A", "Add To", "Add_To", "Add-To", "Add.To", "A@", "A[", "A`", "A{", "A/", "A:", "Größe",
		"A\x00", "A\n", " A", longest + "b",
	} {
		if IsEventName(name) {
			t.Errorf("%q is accepted", name)
		}
	}
}

func TestAnEventTimeIsNotFarInTheFuture(t *testing.T) {
	received := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	for _, tt := range []struct {
		name, sent string
		want       time.Time
	}{
		{"a past time is kept", "2026-11-20T10:30:00.25Z", time.Date(2026, 11, 20, 10, 30, 0, 25e7, time.UTC)},
		{"an offset is converted", "2026-11-20T10:30:00+02:00", time.Date(2026, 11, 20, 8, 30, 0, 0, time.UTC)},
		{"the sender's clock may lead", "2026-11-20T12:05:00Z", received.Add(MaxClockLead)},
		{"but not by more", "2026-11-20T12:05:00.000001Z", received},
		{"text that is not a time is ignored", "yesterday", received},
		{"a date without a time is ignored", "2026-11-20", received},
	} {
		if got := EventTime(tt.sent, received); !got.Equal(tt.want) || got.Location() != time.UTC {
			t.Errorf("%s: %v, want %v", tt.name, got, tt.want)
		}
	}
}
