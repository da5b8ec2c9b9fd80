package check

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
)

// BenchmarkEvent checks a usual purchase, and 16 KiB that a stranger has made to take long.
func BenchmarkEvent(b *testing.B) {
	var names strings.Builder
	for i := range 1000 {
		fmt.Fprintf(&names, `,"curren%cy%d":1`, 'a'+i%26, i)
	}
	for name, text := range map[string]string{
		"purchase": `{"muid":"0b2e8a52-5d3c-4f4e-9d3a-0a7c3c0f5a11","event":"Purchase","event_id":"1","value":129.5,"currency":"EUR","products":[{"id":"a1","name":"Shoe","price":64.75,"quantity":2}],"pageUrl":"https://shop.example.com/","email":"someone@example.com"}`,
		"names":    `{"muid":"m","event":"Purchase"` + names.String() + `}`,
		"products": `{"muid":"m","event":"Purchase","products":[` + strings.Repeat(`{"id":1},`, 1500) + `{}]}`,
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				var v map[string]any
				if err := json.Unmarshal([]byte(text), &v); err != nil {
					b.Fatal(err)
				}
				Event(v, received)
			}
		})
	}
}
