package main

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"mtagd/store/testenv"
)

// mountDisk mounts a new ext4 file system of this size. It skips the test where that is not permitted.
func mountDisk(t *testing.T, size int64) (dir string) {
	t.Helper()
	image := filepath.Join(t.TempDir(), "image")
	dir = t.TempDir()
	if err := os.WriteFile(image, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(image, size); err != nil {
		t.Fatal(err)
	}
	for _, command := range [][]string{{"mkfs.ext4", "-q", "-m", "0", image}, {"mount", "-o", "loop", image, dir}} {
		if out, err := exec.Command(command[0], command[1:]...).CombinedOutput(); err != nil {
			testenv.Skip(t, fmt.Sprintf("a disk of its own, which the test fills, cannot be mounted: %v: %s", err, out))
		}
	}
	t.Cleanup(func() {
		if out, err := exec.Command("umount", dir).CombinedOutput(); err != nil {
			t.Errorf("%v: %s", err, out)
		}
	})
	return dir
}

// fillDisk writes a file until not a byte is free.
func fillDisk(t *testing.T, path string) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for block := make([]byte, 1<<20); len(block) > 0; {
		_, err := f.Write(block)
		if err == nil {
			err = f.Sync()
		}
		if err != nil && !errors.Is(err, unix.ENOSPC) {
			t.Fatal(err)
		}
		if err != nil {
			block = block[:len(block)/2]
		}
	}
}

// flood sends batches until one is refused, and returns how many events got 201.
func (b *taggedService) flood() (accepted int) {
	b.t.Helper()
	const events = 32
	noise := rand.NewChaCha8([32]byte{}) // cannot be compressed
	for {
		body := []byte("[")
		for i := range events {
			note := make([]byte, 20<<10)
			noise.Read(note)
			body = fmt.Appendf(body, `%s{"event":"PageView","muid":"u-1","note":"%s"}`, ","[:min(i, 1)], base64.StdEncoding.EncodeToString(note))
		}
		body = append(body, ']')
		a, err := b.do(b.client, request{host: tagHost, method: "POST", path: "/mark/" + b.tag, body: string(body)})
		if err != nil {
			b.t.Fatal(err)
		}
		if a.status == http.StatusServiceUnavailable {
			if a.header.Get("Retry-After") == "" {
				b.t.Error("503 without Retry-After")
			}
			return accepted
		}
		var answer struct{ Accepted int }
		if err := json.Unmarshal(a.body, &answer); err != nil || a.status != http.StatusOK {
			b.t.Fatalf("%d %s", a.status, a.body)
		}
		if accepted += answer.Accepted; answer.Accepted < events {
			return accepted
		}
	}
}

// total is how many events the listing has.
func (b *taggedService) total() int {
	b.t.Helper()
	page := b.api("GET", "/v1/partners/events?limit=1&merchantId="+b.merchant, "")
	return int(page["pagination"].(map[string]any)["totalItems"].(float64))
}

// A flood, and then another program, fill the disk. The service reads, stops, is killed, and starts without a free byte.
// Every event that got 201 stays. When there is space, it accepts events by itself.
func TestAFullDisk(t *testing.T) {
	testenv.NotShort(t, "a few hundred megabytes")
	disk := mountDisk(t, 400<<20)
	ballast := filepath.Join(disk, "ballast")
	const most = 200 << 20 // so that the flood takes seconds
	if err := os.WriteFile(ballast, make([]byte, most), 0o600); err != nil {
		t.Fatal(err)
	}
	b := newTaggedServiceIn(t, filepath.Join(disk, "data"), "--limits", "off") // or the merchant's share of the disk would be full first
	accepted := b.flood()
	if accepted == 0 {
		t.Fatal("nothing was accepted on the empty disk")
	}
	end := func(how string, end func() error) {
		t.Helper()
		fillDisk(t, ballast)
		if err := end(); err != nil {
			t.Fatalf("%s on the full disk: %v", how, err)
		}
		fillDisk(t, ballast)
		b.launch()
		if got := b.total(); got != accepted {
			t.Errorf("%s on the full disk: %d events are listed, %d got 201", how, got, accepted)
		}
		if more := b.flood(); more > 0 {
			t.Errorf("%d events were accepted on the full disk", more)
		}
	}
	end("kill", func() error { return b.kill() })
	end("stop", func() error { return b.stop() })
	end("kill again", func() error { return b.kill() })
	if err := os.Truncate(ballast, most-40<<20); err != nil { // there is more space than before the flood
		t.Fatal(err)
	}
	if err := b.waitReady(); err != nil {
		t.Fatal(err)
	}
	more := b.flood()
	if got := b.total(); more == 0 || got != accepted+more {
		t.Errorf("%d events are listed, %d got 201 before and %d after space was freed", got, accepted, more)
	}
}
