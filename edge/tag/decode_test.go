package tag

import "testing"

// fields are reused for the next event: nothing of the last event may remain.
func TestDecodeForgetsTheLastEvent(t *testing.T) {
	var f fields
	if f.decode([]byte(`{"muid":"m","email":"e","phone":"1","deviceId":"d","event":"A","type":"B","event_time":"t","event_id":"i"}`)) != nil {
		t.Fatal("refused")
	}
	if f.decode([]byte(`{"event":"B"}`)) != nil {
		t.Fatal("refused")
	}
	if id, refused := f.identity(&sender{mayIdentify: true}); refused != noIdentifier {
		t.Errorf("identity %+v of an event without one", id)
	}
	if len(f.Type) != 0 || len(f.EventTime) != 0 || len(f.EventID) != 0 || string(f.Event) != `"B"` {
		t.Errorf("left over: %+v", f)
	}
}
