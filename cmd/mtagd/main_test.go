package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"mtagd/cmd/mtagd/operator"
)

// With nohup, a process outlives its terminal: it starts with SIGHUP ignored, and must leave it ignored.
func TestIgnoredHangup(t *testing.T) {
	if signal.Ignored(syscall.SIGHUP) {
		t.Skip("the tests themselves run with nohup")
	}
	if !slices.Contains(stopSignals(), os.Signal(syscall.SIGHUP)) {
		t.Error("SIGHUP does not stop the service")
	}
	signal.Ignore(syscall.SIGHUP)
	defer signal.Reset(syscall.SIGHUP)
	if slices.Contains(stopSignals(), os.Signal(syscall.SIGHUP)) {
		t.Error("an ignored SIGHUP stops the service")
	}
}

// A closed terminal sends SIGHUP twice. The second one does not cut off the requests in progress.
func TestTwoHangupsStopCleanly(t *testing.T) {
	b := newTaggedService(t)
	conn, err := net.Dial("tcp", b.http)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	answers := bufio.NewReader(conn)
	send := func(text string) {
		t.Helper()
		if _, err := io.WriteString(conn, text); err != nil {
			t.Fatal(err)
		}
	}
	receive := func(status int) {
		t.Helper()
		answer, err := http.ReadResponse(answers, nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.Copy(io.Discard, answer.Body); err != nil || answer.StatusCode != status {
			t.Errorf("answered %s, %v, want %d", answer.Status, err, status)
		}
	}
	hangUp := func() {
		t.Helper()
		if err := b.cmd.Process.Signal(syscall.SIGHUP); err != nil {
			t.Fatal(err)
		}
	}

	const event = `{"muid":"m-1","event":"Purchase"}`
	send(fmt.Sprintf("POST /mark/%s HTTP/1.1\r\nHost: %s\r\nContent-Length: %d\r\nExpect: 100-continue\r\n\r\n", b.tag, tagHost, len(event)))
	receive(http.StatusContinue) // the request is in progress
	hangUp()
	if err := b.waitLog(`"msg":"stopping"`); err != nil {
		t.Fatal(err)
	}
	hangUp()
	send(event)
	receive(http.StatusCreated)
	if err := b.waitEnd(); err != nil {
		t.Errorf("%v: %s", err, b.Log())
	}
}

// The error of a command that an older server does not have names both versions.
func TestReportOfAnOlderServer(t *testing.T) {
	var text strings.Builder
	report(&text, fmt.Errorf("backup: %w", &operator.UnknownCommandError{Version: "1.0.0"}))
	if want := "the service runs mtagd 1.0.0, but this program is " + version() + ": restart the service"; !strings.Contains(text.String(), want) {
		t.Errorf("%q, want %q", text.String(), want)
	}
}

// Concurrent operator commands all succeed while servers start and stop.
func TestOperatorsAtOnce(t *testing.T) {
	zone, err := startZone()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(zone.stop)
	data := t.TempDir()
	const commands, each = 4, 2
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
