package eventjson

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/goccy/go-json/jsontext"
)

// FuzzDecode compares Decode with encoding/json. Both must agree on what is a JSON object, and on the strings of its
// fields.
func FuzzDecode(f *testing.F) {
	for _, seed := range []string{
		`{"muid":"m","email":"a@b.c","phone":"+49","deviceId":"d","event":"A","type":"B","event_time":"t","event_id":"1"}`,
		`{"muid":"a","muid":"b","MUID":"c","mu\u0069d":"d","muid ":"e"}`, `{"muid":"\ud83d\u0000\"\\\/\b"}`, `{"muid":"😀\ud83d\ude00"}`,
		`{"muid":null,"event":5,"type":{"a":[1,2,{"muid":"no"}]},"event_id":true}`, `{"muid":"m"} `, `null`, `[]`, `{`, `{}x`, `{"a":01}`, `{"a":1e5,}`,
		"{\"a\":\"\x01\"}", "{\"\xff\":1}", `{"":"","a":-0.0e-0}`, `{"x":` + strings.Repeat("[", 100) + strings.Repeat("]", 100) + `}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		got := new(Fields)
		refused := got.Decode(body)
		var want map[string]json.RawMessage
		valid := utf8.Valid(body) && bytes.HasPrefix(body, []byte("{")) && json.Unmarshal(body, &want) == nil
		if (refused == nil) != valid {
			t.Fatalf("Decode accepts: %v, encoding/json accepts: %v: %q", refused == nil, valid, body)
		}
		if !valid {
			return
		}
		for name, v := range map[string]jsontext.Value{
			"muid": got.MUID, "email": got.Email, "phone": got.Phone, "deviceId": got.DeviceID,
			"event": got.Event, "type": got.Type, "event_time": got.EventTime, "event_id": got.EventID,
		} {
			var s *string
			wantText := ""
			wantString := json.Unmarshal(want[name], &s) == nil && s != nil
			if wantString {
				wantText = *s
			}
			if gotText, ok := Text(v); ok != wantString || gotText != wantText {
				t.Errorf("%s: Decode has %q %v, encoding/json %q %v", name, gotText, ok, wantText, wantString)
			}
		}
	})
}
