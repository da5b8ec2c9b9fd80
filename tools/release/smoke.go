package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
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

// smoke runs each binary: the version, and a service that records an event and lists it. A binary of another architecture needs QEMU.
func (r *release) smoke() error {
	for _, architecture := range r.architectures {
		command := []string{r.binary(architecture)}
		if architecture != runtime.GOARCH {
			qemu, err := exec.LookPath(map[string]string{"arm64": "qemu-aarch64-static", "amd64": "qemu-x86_64-static"}[architecture])
			if err != nil {
				log.Printf("release: the binary for %s was not run: QEMU is missing (Debian: qemu-user-static)", architecture)
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

func (r *release) try(command []string) (err error) {
	ctx, cancel := context.WithTimeout(context.Background(), smokeTimeout)
	defer cancel()
	run := func(args ...string) *exec.Cmd {
		cmd := exec.CommandContext(ctx, command[0], append(command[1:len(command):len(command)], args...)...)
		cmd.Stderr = os.Stderr
		return cmd
	}
	if out, err := run("version").Output(); err != nil || !strings.Contains(string(out), r.commit) {
		return fmt.Errorf("version: %w: %s", err, out)
	}
	data, err := os.MkdirTemp("", "mtagd-release-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(data)
	service := run("dev", "--http", "127.0.0.1:0", "--data", data)
	out, err := service.StdoutPipe()
	if err != nil {
		return err
	}
	if err := service.Start(); err != nil {
		return err
	}
	defer func() {
		if stopped := service.Process.Signal(syscall.SIGTERM); err == nil {
			err = stopped
		}
		if ended := service.Wait(); err == nil {
			err = ended
		}
	}()
	example := regexp.MustCompile(`"Authorization: Bearer (\S+)" (\S+)/v1/partners/merchant`)
	var words []string
	for lines := bufio.NewScanner(out); words == nil; words = example.FindStringSubmatch(lines.Text()) {
		if !lines.Scan() {
			return fmt.Errorf("the service has not started")
		}
	}
	var list struct{ Merchants []struct{ MerchantID, TagID string } }
	ask := func(method, path, body string, into any) error {
		request, err := http.NewRequestWithContext(ctx, method, words[2]+path, strings.NewReader(body))
		if err != nil {
			return err
		}
		request.Header.Set("Authorization", "Bearer "+words[1])
		answer, err := http.DefaultClient.Do(request)
		if err != nil {
			return err
		}
		defer answer.Body.Close()
		if text, err := io.ReadAll(answer.Body); err != nil || answer.StatusCode >= 300 || json.Unmarshal(text, into) != nil {
			return fmt.Errorf("%s: %s %w: %s", path, answer.Status, err, text)
		}
		return nil
	}
	if err := ask("GET", "/v1/partners/merchant", "", &list); err != nil || len(list.Merchants) == 0 {
		return fmt.Errorf("no merchant: %w", err)
	}
	m := list.Merchants[0]
	if err := ask("POST", "/mark/"+m.TagID, `{"muid":"smoke","event":"PageView"}`, new(any)); err != nil {
		return err
	}
	var events json.RawMessage
	if err := ask("GET", "/v1/partners/events?merchantId="+m.MerchantID, "", &events); err != nil || !bytes.Contains(events, []byte("smoke")) {
		return fmt.Errorf("the event is not listed: %w: %s", err, events)
	}
	return nil
}
