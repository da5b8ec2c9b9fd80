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
		if got := EventTime(tt.sent, 0, received); !got.Equal(tt.want) || got.Location() != time.UTC {
			t.Errorf("%s: %v, want %v", tt.name, got, tt.want)
		}
	}
}

func TestAnEventTimeIsCorrectedByTheSendersClock(t *testing.T) {
	received := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	for _, tt := range []struct {
		name, sent string
		behind     time.Duration
		want       time.Time
	}{
		{"a slow clock", "2026-11-20T11:00:00Z", 50 * time.Minute, received.Add(-10 * time.Minute)},
		{"a fast clock", "2026-11-20T13:00:00Z", -70 * time.Minute, received.Add(-10 * time.Minute)},
		{"the corrected time is not far in the future", "2026-11-20T11:00:00Z", 2 * time.Hour, received},
		{"nor before year 0", "0001-11-20T11:00:00Z", -24 * 365 * 100 * time.Hour, received},
	} {
		if got := EventTime(tt.sent, tt.behind, received); !got.Equal(tt.want) {
			t.Errorf("%s: %v, want %v", tt.name, got, tt.want)
		}
	}
}
