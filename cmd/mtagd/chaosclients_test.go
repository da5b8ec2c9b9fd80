package main

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"
)

// outcome is what a sender knows of an event.
type outcome int

const (
	isUnknown  outcome = iota // it may be recorded, once
	isRefused                 // it is not recorded
	isRecorded                // it is recorded, once
)

// sent is what the senders know, and what the followers of the feed have seen.
type sent struct {
	mu     sync.Mutex
	events map[string]outcome // by the key in their bodies
	read   [3]*[]receivedEvent
}

type receivedEvent struct{ id, key string }

func newSent() *sent {
	s := &sent{events: map[string]outcome{}}
	for i := range s.read {
		s.read[i] = new([]receivedEvent)
	}
	return s
}

func (s *sent) note(key string, o outcome) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.events[key] = o
}

// saysUnknown is in the message of a 503 after which the event may be recorded.
const saysUnknown = "not known"

// outcomeOf is what an answer to one event says.
func outcomeOf(got answer, err error) outcome {
	switch {
	case err != nil || got.status >= 500 && (got.status != http.StatusServiceUnavailable || strings.Contains(string(got.body), saysUnknown)):
		return isUnknown
	case got.status == http.StatusCreated:
		return isRecorded
	}
	return isRefused
}

func eventBody(key, muid string, remembered bool) string {
	id := ""
	if remembered {
		id = fmt.Sprintf(`,"event_id":%q`, key)
	}
	return fmt.Sprintf(`{"event":"Order","muid":%q,"key":%q%s}`, muid, key, id)
}

func (c *chaos) mark(body string) request {
	return request{host: tagHost, method: "POST", path: "/mark/" + c.tag, body: body}
}

// sendOne sends one event once.
func (c *chaos) sendOne(n *chaosNode, key string, remembered bool) outcome {
	o := outcomeOf(c.ask(n, c.mark(eventBody(key, "muid-1", remembered))))
	c.sent.note(key, o)
	return o
}

// send sends events until the clients must end: as a tag does, with an event_id and until they are recorded; and once only,
// so that some are refused for good.
func (c *chaos) send(sender int) {
	random := rand.New(rand.NewPCG(c.seed, uint64(100+sender)))
	for i := 0; c.isRunning(); i++ {
		key := fmt.Sprintf("%d-%d", sender, i)
		n := c.node[random.IntN(2)]
		switch random.IntN(4) {
		case 0:
			if c.sendOne(n, key, random.IntN(2) == 0) != isRecorded {
				c.pause()
			}
		case 1:
			c.sendBatch(random, key)
		case 2:
			c.sendPerson(sender, i, key)
		default:
			c.sendUntilRecorded(key, eventBody(key, "muid-2", true))
		}
		time.Sleep(5 * time.Millisecond) // or the load would decide how long the test takes
	}
}

func (c *chaos) isRunning() bool { return !isClosed(c.ended) }

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// sendUntilRecorded sends an event to one node after the other until it is recorded. A refused attempt does not change what
// earlier attempts may have done.
func (c *chaos) sendUntilRecorded(key, body string) {
	known := isRefused
	for i := 0; ; i++ {
		o := outcomeOf(c.ask(c.node[i%2], c.mark(body)))
		if o == isUnknown && known == isRefused || o == isRecorded {
			known = o
		}
		if o == isRecorded || !c.pause() {
			break
		}
	}
	c.sent.note(key, known)
}

func (c *chaos) sendBatch(random *rand.Rand, key string) {
	var keys, bodies []string
	for i := range 1 + random.IntN(20) {
		keys = append(keys, fmt.Sprintf("%s-%d", key, i))
		bodies = append(bodies, eventBody(keys[i], "muid-3", true))
	}
	known := isRefused
	for i := 0; ; i++ {
		got, err := c.ask(c.node[i%2], c.mark("["+strings.Join(bodies, ",")+"]"))
		if err == nil && got.status == http.StatusOK {
			if n := decodeObject(c.T, got.body)["accepted"]; n != float64(len(keys)) {
				c.Errorf("%v of %d events of a batch are accepted: %s", n, len(keys), got.body)
			}
			known = isRecorded
			break
		}
		if outcomeOf(got, err) == isUnknown {
			known = isUnknown
		}
		if !c.pause() {
			break
		}
	}
	for _, k := range keys {
		c.sent.note(k, known)
	}
}

// sendPerson links an email to a muid through one node, and sends an event with the email alone through the other.
func (c *chaos) sendPerson(sender, i int, key string) {
	email := fmt.Sprintf("%d-%d@example.com", sender, i)
	link := request{host: tagHost, method: "POST", path: "/id/" + c.tag, body: fmt.Sprintf(`{"muid":"muid-4","email":%q}`, email)}
	if got, ok := c.retry(link); !ok || got.status != http.StatusOK {
		if ok {
			c.Errorf("id: %d %s", got.status, got.body)
		}
		return
	}
	c.sendUntilRecorded(key, fmt.Sprintf(`{"event":"Order","email":%q,"key":%q,"event_id":%q}`, email, key, key))
}

// feedPage is an answer of the feed.
type feedPage struct {
	Events []struct {
		ID      string
		RawData struct{ Key string } `json:"raw_data"`
	}
	Cursor  string
	HasMore bool
}

// follow follows the feed, each follower on a node of its own, and the third one on both.
func (c *chaos) follow(follower int) {
	seen := c.sent.read[follower]
	after := "" // the parameter
	for i := 0; ; i++ {
		ending := isClosed(c.allSent)
		n := c.node[min(follower, 1)]
		if follower == 2 {
			n = c.node[i%2]
		}
		got, err := c.ask(n, request{method: "GET", path: "/v1/partners/events/feed?limit=1000&wait=1&merchantId=" + c.merchant + after})
		if err != nil || got.status != http.StatusOK {
			if err == nil && got.status != http.StatusServiceUnavailable {
				c.Errorf("feed on %s: %d %s", n.name, got.status, got.body)
				return
			}
			time.Sleep(50 * time.Millisecond)
			continue
		}
		var page feedPage
		if err := json.Unmarshal(got.body, &page); err != nil {
			c.Errorf("feed: %v", err)
			return
		}
		for _, e := range page.Events {
			*seen = append(*seen, receivedEvent{e.ID, e.RawData.Key})
		}
		after = "&after=" + page.Cursor
		if ending && !page.HasMore {
			return
		}
	}
}

// manage changes control data through both nodes, and expects each change to be there once, and on the other node within a
// second unless that is not ready.
func (c *chaos) manage() {
	for i := 0; c.isRunning(); i++ {
		name := fmt.Sprintf("merchant-%d", i)
		created, ok := c.retry(request{method: "POST", path: "/v1/partners/merchant", body: fmt.Sprintf(`{"name":%q}`, name),
			header: http.Header{"Idempotency-Key": {name}}})
		if !ok {
			return
		}
		if created.status != http.StatusCreated {
			c.Errorf("create merchant: %d %s", created.status, created.body)
			return
		}
		id := decodeObject(c.T, created.body)["merchantId"].(string)
		if !c.expectOneTag(id) || !c.expectRevocation(i) {
			return
		}
		if got, ok := c.retry(request{method: "PATCH", path: "/v1/partners/merchant/" + id, body: fmt.Sprintf(`{"retentionDays":%d}`, i%100+1)}); ok && got.status != http.StatusOK {
			c.Errorf("patch: %d %s", got.status, got.body)
		}
		// A retry after a lost answer finds nothing to delete.
		if got, ok := c.retry(request{method: "DELETE", path: "/v1/partners/merchant/" + id}); ok && got.status != http.StatusOK && got.status != http.StatusNotFound {
			c.Errorf("delete: %d %s", got.status, got.body)
		}
		if !c.pause() {
			return
		}
	}
}

// expectOneTag generates a merchant's tag on both nodes at once: both answers are the same tag.
func (c *chaos) expectOneTag(merchant string) bool {
	var tags [2]string
	var all sync.WaitGroup
	for i := range tags {
		all.Go(func() {
			for c.isRunning() {
				got, err := c.ask(c.node[i], request{method: "POST", path: "/v1/partners/tracktag/generate", body: fmt.Sprintf(`{"merchantId":%q,"type":"client-side"}`, merchant)})
				if err == nil && got.status == http.StatusOK {
					tags[i] = decodeObject(c.T, got.body)["tagId"].(string)
					return
				}
				// The other node may not know the merchant yet.
				if err == nil && got.status != http.StatusServiceUnavailable && got.status != http.StatusNotFound {
					c.Errorf("generate: %d %s", got.status, got.body)
				}
				c.pause()
			}
		})
	}
	all.Wait()
	if c.isRunning() && tags[0] != tags[1] {
		c.Errorf("merchant %s has the tags %q", merchant, tags)
	}
	return c.isRunning()
}

// expectRevocation issues a key, and revokes it. Two seconds after the answer, no node that is ready takes it.
func (c *chaos) expectRevocation(i int) bool {
	issued, ok := c.retry(request{method: "POST", path: "/v1/partners/key", body: `{"name":"Short"}`, header: http.Header{"Idempotency-Key": {fmt.Sprintf("key-%d", i)}}})
	if !ok {
		return false
	}
	if issued.status == http.StatusUnprocessableEntity {
		return true // the answer with the key was lost, and cannot be given again
	}
	var key struct{ KeyID, APIKey string }
	if err := json.Unmarshal(issued.body, &key); err != nil || issued.status != http.StatusCreated {
		c.Errorf("issue key: %d %s", issued.status, issued.body)
		return false
	}
	for revoked := (answer{}); revoked.status != http.StatusOK; {
		var ok bool
		if revoked, ok = c.retry(request{method: "DELETE", path: "/v1/partners/key/" + key.KeyID}); !ok {
			return false
		}
		if revoked.status == http.StatusNotFound && c.pause() {
			continue // the node does not know the key yet
		}
		if revoked.status != http.StatusOK {
			c.Errorf("revoke key: %d %s", revoked.status, revoked.body)
			return false
		}
	}
	time.Sleep(2 * time.Second) // the promise is that of a second, but a node is ready until the database has been silent for two
	for _, n := range c.node {
		// Ready before and after: so the directory was fresh in between.
		readyBefore := c.isReady(n)
		got, err := c.ask(n, request{method: "GET", path: "/v1/partners/config", key: key.APIKey})
		if err == nil && got.status == http.StatusOK && readyBefore && c.isReady(n) {
			c.Errorf("%s takes a key 2 seconds after it was revoked", n.name)
		}
	}
	return true
}

func (c *chaos) isReady(n *chaosNode) bool {
	resp, err := c.client.Get("http://" + n.running.Load().admin + "/readyz")
	if err != nil {
		return false
	}
	_ = resp.Body.Close() // only the status counts
	return resp.StatusCode == http.StatusOK
}

func decodeObject(t *testing.T, text []byte) (object map[string]any) {
	if err := json.Unmarshal(text, &object); err != nil {
		t.Errorf("%v: %s", err, text)
	}
	return object
}
