package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"
)

// TestContract is what the contract test of the clients asks of this one. CONTRACT has a server that fails again and again,
// an API key, and a file for what was got. The TypeScript client has the same in contract.ts.
func TestContract(t *testing.T) {
	var url, key, file string
	if n, _ := fmt.Sscan(os.Getenv("CONTRACT"), &url, &key, &file); n != 3 {
		t.Skip("it is part of the contract test in partnerapi/openapi")
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	failed := func(err error) string {
		if e := (*Error)(nil); errors.As(err, &e) {
			return fmt.Sprint(e.Status, " ", e.Code, " ", e.Field, " ", e.Attempts > 1, " ", e.RequestID != "" && e.Message != "")
		} else if err != nil {
			return "no answer"
		}
		return "no error"
	}
	ctx := t.Context()
	api, tagHost := New(url, key), New(url, "")
	api.Backoff, tagHost.Backoff = time.Millisecond, time.Millisecond

	merchant, err := api.CreateMerchant(ctx, MerchantInput{Name: "Contract"})
	must(err)
	id := merchant.MerchantID
	tag, err := api.GenerateTag(ctx, TagInput{MerchantID: id, Type: "client-side"})
	must(err)
	purchase := func(value int) NewEvent {
		return NewEvent{MUID: "visitor", Event: "Purchase", Fields: map[string]any{"value": value}}
	}
	must(tagHost.SendEvent(ctx, tag.TagID, purchase(0)))
	var batch []NewEvent
	for i := range 250 {
		batch = append(batch, purchase(i+1))
	}
	sent, err := tagHost.SendEvents(ctx, tag.TagID, append(batch, NewEvent{Event: "Login"}))
	must(err)

	var listed, followed []any
	for event, err := range api.AllEvents(ctx, ListEventsQuery{MerchantID: id, SortOrder: "asc"}) {
		must(err)
		listed = append(listed, event.RawData["value"])
	}
	cursor := ""
	for _, upTo := range []int{100, 251} {
		for page, err := range api.Feed(ctx, ReadFeedQuery{MerchantID: id, After: cursor}) {
			must(err)
			for _, event := range page.Events {
				followed = append(followed, event.RawData["value"])
			}
			cursor = page.Cursor
			if len(followed) >= upTo {
				break
			}
		}
	}
	changed, err := api.ChangeMerchant(ctx, id, MerchantChange{RetentionDays: Null[int64]()})
	must(err)

	stopped, stop := context.WithCancel(ctx)
	config := make(chan error)
	go func() {
		_, err := api.ReadConfig(stopped)
		config <- err
	}()
	hangs, err := http.Get(url + "/hangs") // until that request has arrived
	must(err)
	must(hangs.Body.Close())
	stop()

	export := func(format string) (string, error) {
		file, err := api.ExportEvents(ctx, ExportEventsQuery{MerchantID: id, Format: format})
		must(err)
		defer file.Close()
		text, err := io.ReadAll(file)
		return string(text), err
	}
	exported, err := export("ndjson")
	must(err)
	_, brokenOff := export("csv")
	_, secret := api.CreateSecret(ctx, id)
	withSecret, err := api.ReadMerchant(ctx, id)
	must(err)
	limit := int64(101)
	_, invalid := api.ListEvents(ctx, ListEventsQuery{MerchantID: id, Limit: &limit})
	_, missing := api.ReadMerchant(ctx, "0b2e8a52-5d3c-4f4e-9d3a-0a7c3c0f5a11")
	_, stranger := tagHost.ReadConfig(ctx)

	var text bytes.Buffer
	must(json.NewEncoder(&text).Encode(map[string]any{
		"accepted": sent.Accepted, "refused": sent.Results[250].Status, "listed": listed, "followed": followed,
		"forEver": changed.RetentionDays.IsNull(), "exported": strings.Count(exported, "\n"), "brokenOff": failed(brokenOff),
		"secret": failed(secret), "secrets": len(withSecret.Secrets), "invalid": failed(invalid), "missing": failed(missing),
		"stranger": failed(stranger), "nobody": failed(tagHost.SendEvent(ctx, tag.TagID, NewEvent{Event: "Login"})),
		"cancelled": failed(<-config),
	}))
	must(os.WriteFile(file, text.Bytes(), 0o600))
}
