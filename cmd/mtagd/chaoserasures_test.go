package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"time"
)

// persons is what the client of erasures knows of the events of its shop.
type persons struct {
	stays, goes, unknown map[string]bool // by the key in their bodies
	erasures             []string        // that were accepted
}

// erasePersons sends events of two persons, has one of them erased, and begins again with others. What is under way when
// the clients must end is unknown.
func (c *chaos) erasePersons() {
	p := &c.persons
	for i := 0; c.isRunning(); i++ {
		var keys [2][]string
		for j := range 6 {
			who := []string{"stays", "goes"}[j%2]
			key := fmt.Sprintf("%s-%d-%d", who, i, j)
			p.unknown[key] = true
			got, ok := c.retry(request{host: tagHost, method: "POST", path: "/mark/" + c.people.tag,
				body: fmt.Sprintf(`{"event":"Order","muid":"%s-%d","email":"%s-%d@example.com","key":%q,"event_id":%q}`, who, i, who, i, key, key)})
			if !ok {
				return
			}
			if got.status != http.StatusCreated {
				c.Errorf("event of a person: %d %s", got.status, got.body)
			}
			keys[j%2] = append(keys[j%2], key)
		}
		who := fmt.Sprintf(`"muid":"goes-%d"`, i)
		if i%2 == 1 {
			who = fmt.Sprintf(`"email":"goes-%d@example.com"`, i)
		}
		for _, k := range keys[0] {
			delete(p.unknown, k)
			p.stays[k] = true
		}
		got, ok := c.retry(request{method: "POST", path: "/v1/partners/erasures", body: fmt.Sprintf(`{"merchantId":%q,%s}`, c.people.merchant, who)})
		if !ok {
			return
		}
		if got.status != http.StatusAccepted {
			c.Errorf("erasure: %d %s", got.status, got.body)
			return
		}
		p.erasures = append(p.erasures, decodeObject(c.T, got.body)["erasureId"].(string))
		for _, k := range keys[1] {
			delete(p.unknown, k)
			p.goes[k] = true
		}
		c.pause()
	}
}

// erasedWithin is how long the last erasures may take, once there are no faults any more.
const erasedWithin = 2 * time.Minute

// checkPersons waits until all erasures are done. Then the events of the erased persons are gone, and those of the others
// are there once.
func (c *chaos) checkPersons() {
	ask := func(path string) []byte {
		got, err := c.ask(c.node[0], request{method: "GET", path: "/v1/partners/" + path})
		if err != nil || got.status != http.StatusOK {
			c.Fatalf("%s: %d %s %v", path, got.status, got.body, err)
		}
		return got.body
	}
	deadline := time.Now().Add(erasedWithin)
	for _, id := range c.persons.erasures {
		for {
			state := decodeObject(c.T, ask("erasures/"+id))["state"]
			if state == "done" {
				break
			}
			if time.Now().After(deadline) {
				c.Errorf("the erasure %s is %v", id, state)
				return
			}
			time.Sleep(20 * time.Millisecond)
		}
	}
	p, seen, all := &c.persons, map[string]int{}, 0
	for lines := bufio.NewScanner(bytes.NewReader(ask("events/export?format=ndjson&merchantId=" + c.people.merchant))); lines.Scan(); all++ {
		var e struct {
			RawData struct{ Key string } `json:"raw_data"`
		}
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			c.Fatal(err)
		}
		seen[e.RawData.Key]++
	}
	for key, n := range seen {
		if !p.stays[key] && !p.unknown[key] || n > 1 {
			c.Errorf("event %s of a person is there %d times; the person is erased: %v", key, n, p.goes[key])
		}
	}
	for key := range p.stays {
		if seen[key] != 1 {
			c.Errorf("event %s of a person who was not erased is there %d times", key, seen[key])
		}
	}
	var list struct{ Pagination struct{ TotalItems int } }
	if err := json.Unmarshal(ask("events?merchantId="+c.people.merchant), &list); err != nil || list.Pagination.TotalItems != all {
		c.Errorf("the total after the erasures is %d, and %d events are exported, %v", list.Pagination.TotalItems, all, err)
	}
}
