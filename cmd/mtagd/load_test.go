package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"mtagd/store/testenv"
)

// taggedService is a service with one partner, one merchant and its client-side tag.
type taggedService struct {
	*service
	t        *testing.T
	client   *http.Client
	zone     *zone
	data     string
	flags    []string // of serve
	key      string
	merchant string
	tag      string
}

func newTaggedService(t *testing.T) *taggedService {
	t.Helper()
	return newTaggedServiceIn(t, filepath.Join(t.TempDir(), "data"))
}

func newTaggedServiceIn(t *testing.T, data string, flags ...string) *taggedService {
	t.Helper()
	zone, err := startZone()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(zone.stop)
	b := &taggedService{
		t: t, zone: zone, data: data, flags: flags,
		client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}},
	}
	t.Cleanup(b.client.CloseIdleConnections)
	b.start()
	b.addTag()
	return b
}

// addTag adds the partner, the merchant and the tag to a running service.
func (b *taggedService) addTag() {
	b.t.Helper()
	var err error
	if _, b.key, err = newPartner(b.data, "Load"); err != nil {
		b.t.Fatal(err)
	}
	b.merchant = b.api("POST", "/v1/partners/merchant", `{"name":"Load"}`)["merchantId"].(string)
	b.tag = b.api("POST", "/v1/partners/tracktag/generate",
		fmt.Sprintf(`{"merchantId":%q,"type":"client-side"}`, b.merchant))["tagId"].(string)
}

// start starts the service and waits until it is ready.
func (b *taggedService) start() {
	b.t.Helper()
	b.launch()
	if err := b.waitReady(); err != nil {
		b.t.Fatal(err)
	}
}

// launch starts the service and waits until it listens.
func (b *taggedService) launch() {
	b.t.Helper()
	service, err := launchService(b.data, b.zone.address, b.flags...)
	if err != nil {
		b.t.Fatal(err)
	}
	b.service = service
	b.t.Cleanup(func() {
		if service.ended {
			return
		}
		if err := service.stop(); err != nil {
			b.t.Error(err)
		}
	})
}

// api sends a request to the partner API and returns the object in its answer.
func (b *taggedService) api(method, path, body string) map[string]any {
	b.t.Helper()
	a, err := b.do(b.client, request{host: baseHost, method: method, path: path, key: b.key, body: body})
	if err != nil {
		b.t.Fatal(err)
	}
	var object map[string]any
	if err := json.Unmarshal(a.body, &object); err != nil || a.status >= 300 {
		b.t.Fatalf("%s %s: %d %s", method, path, a.status, a.body)
	}
	return object
}

// muids lists all events, page by page, and counts them by muid.
func (b *taggedService) muids() (count map[string]int, total int) {
	b.t.Helper()
	count = map[string]int{}
	for page := 1; ; page++ {
		var list struct {
			Events []struct {
				MUID string `json:"muid"`
			}
			Pagination struct {
				TotalItems  int
				HasNextPage bool
			}
		}
		path := fmt.Sprintf("/v1/partners/events?merchantId=%s&limit=100&sortOrder=asc&page=%d", b.merchant, page)
		a, err := b.do(b.client, request{host: baseHost, method: "GET", path: path, key: b.key})
		if err != nil {
			b.t.Fatal(err)
		}
		if err := json.Unmarshal(a.body, &list); err != nil || a.status != http.StatusOK {
			b.t.Fatalf("%s: %d %s", path, a.status, a.body)
		}
		for _, e := range list.Events {
			count[e.MUID]++
		}
		if !list.Pagination.HasNextPage {
			return count, list.Pagination.TotalItems
		}
	}
}

// The service is killed twice under load, and then stopped. After each start, every event that got 201 is listed exactly once,
// and the total is the number of events listed. Requests that are in progress when it stops are answered.
func TestKillUnderLoad(t *testing.T) {
	testenv.NotShort(t, "time")
	const (
		workers = 16
		enough  = 200 // acknowledged events before the end
	)
	b := newTaggedService(t)
	acknowledged := map[string]bool{}
	for round, end := range []string{"kill", "kill", "stop"} {
		var (
			mu    sync.Mutex
			acks  int
			ready = make(chan struct{})
			all   sync.WaitGroup
		)
		for worker := range workers {
			all.Go(func() {
				for i := 0; ; i++ {
					muid := fmt.Sprintf("r%d-w%d-%d", round, worker, i)
					a, err := b.do(b.client, request{
						host: tagHost, method: "POST", path: "/mark/" + b.tag,
						body: fmt.Sprintf(`{"muid":%q,"event":"Purchase","value":1}`, muid),
					})
					if err != nil {
						return // the service accepts no connections any more
					}
					if a.status != http.StatusCreated {
						t.Errorf("%s: answered %d %s", end, a.status, a.body)
						return
					}
					mu.Lock()
					acknowledged[muid] = true
					if acks++; acks == enough {
						close(ready)
					}
					mu.Unlock()
				}
			})
		}
		<-ready
		if end == "kill" {
			if err := b.kill(); err != nil {
				t.Fatal(err)
			}
		} else if err := b.stop(); err != nil {
			t.Fatalf("stop: %v\n%s", err, b.Log())
		}
		all.Wait()

		b.start()
		listed, total := b.muids()
		for muid := range acknowledged {
			if listed[muid] != 1 {
				t.Errorf("round %d: the acknowledged event of %s is listed %d times", round, muid, listed[muid])
			}
		}
		sum := 0
		for muid, n := range listed {
			sum += n
			if n != 1 {
				t.Errorf("round %d: the event of %s is listed %d times", round, muid, n)
			}
		}
		if total != sum {
			t.Errorf("round %d: the total is %d, and %d events are listed", round, total, sum)
		}
		if t.Failed() {
			t.FailNow()
		}
	}
}

func TestConcurrentGenerate(t *testing.T) {
	b := newTaggedService(t)
	b.generateTheSameTag()
	b.generateForOneDomain()
}

// Sixteen concurrent calls generate the same tag. They create one tag, and exactly one answer says that it is new.
func (b *taggedService) generateTheSameTag() {
	const calls = 16
	for _, c := range []struct{ kind, body string }{
		{"server-side", `{"merchantId":%q,"type":"server-side","domain":"shoes.com"}`},
		{"client-side", `{"merchantId":%q,"type":"client-side"}`},
	} {
		merchant := b.api("POST", "/v1/partners/merchant", `{"name":"Shoe shop"}`)["merchantId"]
		var (
			mu       sync.Mutex
			ids      = map[string]int{}
			messages = map[string]int{}
			all      sync.WaitGroup
		)
		for range calls {
			all.Go(func() {
				a, err := b.do(b.client, request{
					host: baseHost, method: "POST", path: "/v1/partners/tracktag/generate",
					key: b.key, body: fmt.Sprintf(c.body, merchant),
				})
				var tag struct{ TagID, Message string }
				if err == nil {
					err = json.Unmarshal(a.body, &tag)
				}
				if err != nil || a.status != http.StatusOK {
					b.t.Errorf("%s: %v %d %s", c.kind, err, a.status, a.body)
				}
				mu.Lock()
				defer mu.Unlock()
				ids[tag.TagID]++
				messages[tag.Message]++
			})
		}
		all.Wait()
		if len(ids) != 1 || messages["New tag created successfully"] != 1 || messages["Existing tag retrieved"] != calls-1 {
			b.t.Errorf("%s: %d tags, messages %v", c.kind, len(ids), messages)
		}
	}
}

// When sixteen merchants ask for one domain at the same time, one gets it and the others get 409.
func (b *taggedService) generateForOneDomain() {
	const merchants = 16
	var (
		mu       sync.Mutex
		statuses []int
		all      sync.WaitGroup
	)
	for range merchants {
		merchant := b.api("POST", "/v1/partners/merchant", `{"name":"Shoe shop"}`)["merchantId"]
		all.Go(func() {
			a, err := b.do(b.client, request{
				host: baseHost, method: "POST", path: "/v1/partners/tracktag/generate", key: b.key,
				body: fmt.Sprintf(`{"merchantId":%q,"type":"server-side","domain":"one.com"}`, merchant),
			})
			if err != nil {
				b.t.Error(err)
			}
			mu.Lock()
			defer mu.Unlock()
			statuses = append(statuses, a.status)
		})
	}
	all.Wait()
	slices.Sort(statuses)
	want := append([]int{http.StatusOK}, slices.Repeat([]int{http.StatusConflict}, merchants-1)...)
	if !slices.Equal(statuses, want) {
		b.t.Errorf("statuses are %v", statuses)
	}
}
