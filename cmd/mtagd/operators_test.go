package main

import (
	"encoding/json"
	"fmt"
	"os/exec"
	"sync"
	"testing"
)

// Concurrent operator commands all succeed while servers start and stop.
func TestOperatorsAtOnce(t *testing.T) {
	zone, err := startZone()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(zone.stop)
	data := t.TempDir()
	const commands, each = 4, 4
	var all sync.WaitGroup
	for c := range commands {
		all.Go(func() {
			for i := range each {
				name := fmt.Sprintf("Partner %d-%d", c, i)
				if out, err := exec.Command("mtagd", "partner", "add", "--name", name, "--data", data).CombinedOutput(); err != nil {
					t.Errorf("%v: %s", err, out)
				}
			}
		})
	}
	for range 2 {
		service, err := startService(data, zone.address)
		if err != nil {
			// A command had the data directory open, so the server failed to start.
			t.Log(err)
			continue
		}
		if err := service.stop(); err != nil {
			t.Error(err)
		}
	}
	all.Wait()

	out, err := exec.Command("mtagd", "partner", "list", "--data", data).Output()
	if err != nil {
		t.Fatal(err)
	}
	var partners []struct{ PartnerID string }
	if err := json.Unmarshal(out, &partners); err != nil || len(partners) != commands*each {
		t.Errorf("%d partners, want %d; %v", len(partners), commands*each, err)
	}
}
