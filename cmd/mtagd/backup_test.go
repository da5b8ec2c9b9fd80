package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"mtagd/store/testenv"
)

// Backups are made under load, each an increment of the last. Each point has every event that was acknowledged before the
// backup began. The last one, made while nothing arrives, restores to exactly the acknowledged events.
func TestBackupUnderLoad(t *testing.T) {
	testenv.NotShort(t, "time")
	const (
		workers = 8
		rounds  = 2
		enough  = 100 // acknowledged events between two backups
	)
	b := newTaggedService(t)
	to := filepath.Join(t.TempDir(), "backup")
	var (
		mu           sync.Mutex
		acknowledged = map[string]int{}
		more         = sync.NewCond(&mu)
		stop         bool
		all          sync.WaitGroup
	)
	for worker := range workers {
		all.Go(func() {
			for i := 0; ; i++ {
				muid := fmt.Sprintf("w%d-%d", worker, i)
				a, err := b.do(b.client, request{host: tagHost, method: "POST", path: "/mark/" + b.tag,
					body: fmt.Sprintf(`{"muid":%q,"event":"Purchase","event_id":%q}`, muid, muid)})
				if err != nil || a.status != http.StatusCreated {
					t.Errorf("%d %s, %v", a.status, a.body, err)
					return
				}
				mu.Lock()
				acknowledged[muid] = 1
				more.Signal()
				ended := stop
				mu.Unlock()
				if ended {
					return
				}
				time.Sleep(20 * time.Millisecond) // or the load, not the backups, would decide how long the test takes
			}
		})
	}
	type point struct {
		name   string
		before map[string]int // what was acknowledged when the backup began
	}
	var points []point
	for range rounds {
		mu.Lock()
		for last := len(acknowledged); len(acknowledged) < last+enough; {
			more.Wait()
		}
		before := maps.Clone(acknowledged)
		mu.Unlock()
		points = append(points, point{b.backup(to), before})
	}
	mu.Lock()
	stop = true
	mu.Unlock()
	all.Wait()
	points = append(points, point{b.backup(to), acknowledged})
	if err := b.kill(); err != nil {
		t.Fatal(err)
	}
	for i, p := range points {
		b.data = filepath.Join(t.TempDir(), "restored")
		if err := runMtagd(nil, "restore", to, "--data", b.data, "--point", p.name); err != nil {
			t.Fatal(err)
		}
		b.start()
		listed, total := b.muids()
		if err := b.stop(); err != nil {
			t.Error(err)
		}
		if total != len(listed) {
			t.Errorf("point %d: the total is %d, and %d different events are listed", i, total, len(listed))
		}
		for muid := range p.before {
			if listed[muid] != 1 {
				t.Errorf("point %d: the event of %s is listed %d times", i, muid, listed[muid])
			}
		}
		if i == len(points)-1 && !maps.Equal(listed, acknowledged) {
			t.Errorf("the last point has %d events, want the %d that were acknowledged", len(listed), len(acknowledged))
		}
	}
}

// backup runs "mtagd backup" and returns the name of the point.
func (b *taggedService) backup(to string) string {
	b.t.Helper()
	out, err := exec.Command("mtagd", "backup", to, "--data", b.data).Output()
	if err != nil {
		b.t.Fatalf("backup: %v: %s", err, b.Log())
	}
	var point struct{ Point string }
	if err := json.Unmarshal(out, &point); err != nil {
		b.t.Fatal(err)
	}
	return point.Point
}
