package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"net/http"
	"os/exec"
)

// check compares what the service has with what its clients know.
func (c *chaos) check() {
	fed := c.checkFeed()
	counts := map[string]int{}
	for _, e := range fed {
		counts[e.key]++
	}
	for key, o := range c.sent.events {
		n := counts[key]
		if o == isRecorded && n != 1 || o == isRefused && n != 0 || n > 1 {
			c.Errorf("event %s is there %d times, and its sender knows of %s", key, n, [...]string{"nothing", "a refusal", "a 201"}[o])
		}
	}
	for key := range counts {
		if _, known := c.sent.events[key]; !known {
			c.Errorf("event %s was not sent", key)
		}
	}
	for _, n := range c.node {
		c.checkListing(n, fed)
	}
	c.checkClaims()
	c.checkPersons()
	if out, err := exec.Command("mtagd", "verify", "--data", c.T.TempDir(), "--store", c.node[0].store).CombinedOutput(); err != nil {
		c.Errorf("verify: %v: %s", err, out)
	}
}

// checkFeed expects that all followers have seen the same events in the same order, and returns them.
func (c *chaos) checkFeed() []receivedEvent {
	first := *c.sent.read[0]
	for i, read := range c.sent.read {
		if len(*read) != len(first) {
			c.Errorf("follower %d has seen %d events, and follower 0 %d", i, len(*read), len(first))
		}
		for j, e := range (*read)[:min(len(*read), len(first))] {
			if e != first[j] {
				c.Errorf("the event %d of follower %d is %v, and that of follower 0 is %v", j, i, e, first[j])
				break
			}
		}
	}
	return first
}

// checkListing expects the same events in the export, and as many in the listing's total and in the summary.
func (c *chaos) checkListing(n *chaosNode, fed []receivedEvent) {
	get := func(path string) []byte {
		got, err := c.ask(n, request{method: "GET", path: "/v1/partners/events" + path})
		if err != nil || got.status != http.StatusOK {
			c.Fatalf("%s on %s: %d %s %v", path, n.name, got.status, got.body, err)
		}
		return got.body
	}
	missing := map[receivedEvent]bool{}
	for _, e := range fed {
		missing[e] = true
	}
	exported := 0
	for lines := bufio.NewScanner(bytes.NewReader(get("/export?format=ndjson&merchantId=" + c.merchant))); lines.Scan(); exported++ {
		var e struct {
			ID      string
			RawData struct{ Key string } `json:"raw_data"`
		}
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			c.Fatal(err)
		}
		delete(missing, receivedEvent{e.ID, e.RawData.Key})
	}
	var list struct{ Pagination struct{ TotalItems int } }
	if err := json.Unmarshal(get("?merchantId="+c.merchant), &list); err != nil {
		c.Error(err)
	}
	var summary struct{ Total int }
	if err := json.Unmarshal(get("/summary?by=event_name&bucket=day&merchantId="+c.merchant), &summary); err != nil {
		c.Error(err)
	}
	if len(missing) > 0 || exported != len(fed) || list.Pagination.TotalItems != len(fed) || summary.Total != len(fed) {
		c.Errorf("%s: the feed has %d events, the listing's total is %d, the summary's %d; the export has %d, and misses %d", n.name,
			len(fed), list.Pagination.TotalItems, summary.Total, exported, len(missing))
	}
}
