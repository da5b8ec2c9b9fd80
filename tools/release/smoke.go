package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"strings"
	"syscall"
	"time"
)

// smokeTimeout is long, because an emulated processor is slow.
const smokeTimeout = 3 * time.Minute

// smoke runs each binary. One of another architecture needs QEMU.
func (r *release) smoke() error {
	for _, architecture := range r.architectures {
		command := []string{r.binary(architecture)}
		if architecture != runtime.GOARCH {
			qemu := map[string]string{"arm64": "qemu-aarch64-static", "amd64": "qemu-x86_64-static"}[architecture]
			if _, err := exec.LookPath(qemu); err != nil {
				log.Printf("release: the binary for %s was not run: %s is missing (Debian: qemu-user-static)", architecture, qemu)
				continue
			}
			command = append([]string{qemu}, command...)
		}
		if err := r.try(command); err != nil {
			return fmt.Errorf("the binary for %s: %w", architecture, err)
		}
	}
	return nil
}

// try asks a binary for its version, and runs a service that records an event and lists it.
func (r *release) try(command []string) (err error) {
	binary := func(args ...string) *exec.Cmd { return exec.Command(command[0], append(command[1:], args...)...) }
	if out, err := binary("version").Output(); err != nil || !strings.Contains(string(out), r.commit) {
		return fmt.Errorf("version: %v: %s", err, out)
	}
	data, err := os.MkdirTemp("", "mtagd-release-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(data)
	service := binary("dev", "--http", "127.0.0.1:0", "--data", data)
	out, err := service.StdoutPipe()
	if err != nil {
		return err
	}
	if err := service.Start(); err != nil {
		return err
	}
	timeout := time.AfterFunc(smokeTimeout, func() { _ = service.Process.Kill() }) // it may have ended
	defer func() {
		timeout.Stop()
		stopped := service.Process.Signal(syscall.SIGTERM)
		err = errors.Join(err, stopped, service.Wait())
	}()
	var url string
	for lines := bufio.NewScanner(out); url == "" && lines.Scan(); {
		if text, is := strings.CutPrefix(strings.TrimSpace(lines.Text()), "Demo page"); is {
			url = strings.TrimSuffix(strings.TrimSpace(text), "/demo/")
		}
	}
	page, err := read(http.Get(url + "/demo/"))
	if err != nil {
		return err
	}
	tag := regexp.MustCompile(`tagId=([\w-]+)`).FindStringSubmatch(page)
	if tag == nil {
		return fmt.Errorf("the shop has no tag: %s", page)
	}
	if _, err := read(http.Post(url+"/mark/"+tag[1], "application/json", strings.NewReader(`{"muid":"smoke","event":"Smoke"}`))); err != nil {
		return err
	}
	if events, err := read(http.Get(url + "/demo/events")); err != nil || !strings.Contains(events, `"Smoke"`) {
		return fmt.Errorf("the event is not listed: %w: %s", err, events)
	}
	return nil
}

// read returns the body of an answer, or why there is none.
func read(answer *http.Response, err error) (string, error) {
	if err != nil {
		return "", err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err == nil && answer.StatusCode >= 300 {
		err = fmt.Errorf("%s: %s", answer.Request.URL.Path, answer.Status)
	}
	return string(text), err
}
