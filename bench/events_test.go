package bench

import (
	"encoding/json"
	"testing"
	"time"
)

// Every event is JSON and has the same size.
func TestEventSize(t *testing.T) {
	for n, name := range Names {
		for _, event := range [][]byte{
			AppendEvent(nil, uint64(n), name, time.Time{}, false),
			AppendEvent(nil, uint64(n), name, time.Time{}, true),
			AppendEvent(nil, uint64(n), name, time.Now(), false),
		} {
			if len(event) != EventSize || !json.Valid(event) {
				t.Errorf("%d bytes: %s", len(event), event)
			}
		}
		if event := AppendBrowserEvent(nil, uint64(n), name, time.Now()); len(event) != BrowserEventSize || !json.Valid(event) {
			t.Errorf("%d bytes: %s", len(event), event)
		}
	}
}
