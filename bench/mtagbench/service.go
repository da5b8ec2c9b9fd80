package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"time"
)

// Hosts of the service under measurement. Nothing resolves them: every connection goes to its address.
const (
	baseHost     = "api.mtagd.test"
	tagHost      = "tags.mtagd.test"
	cnameTarget  = "cname.mtagd.test"
	trackingHost = "t.partner-domain.com"
)

// service is mtagd with one partner.
type service struct {
	*process
	program, data string
	ready         time.Duration // from the start to /readyz
	admin         string        // address
	key           string        // of the partner API
	api           *client
	earlierPeak   int64 // the most memory of the processes before this one
}

// newService starts mtagd on an empty data directory and makes a partner with preverified access.
func newService(ctx context.Context, program, data string) (*service, error) {
	s := &service{program: program, data: data}
	var partner struct{ PartnerID string }
	if err := s.operate(ctx, &partner, "partner", "add", "--name", "Benchmark"); err != nil {
		return nil, err
	}
	if err := s.operate(ctx, nil, "partner", "preverify", partner.PartnerID, "--domain", trackingHost); err != nil {
		return nil, err
	}
	var key struct{ APIKey string }
	if err := s.operate(ctx, &key, "key", "issue", "--partner", partner.PartnerID); err != nil {
		return nil, err
	}
	s.key = key.APIKey
	return s, s.start(ctx)
}

// operate runs an operator command and reads what it prints.
func (s *service) operate(ctx context.Context, out any, args ...string) error {
	command := exec.CommandContext(ctx, s.program, append(args, "--data", s.data)...)
	command.Stderr = os.Stderr
	text, err := command.Output()
	if err != nil {
		return fmt.Errorf("mtagd %s %s: %w", args[0], args[1], err)
	}
	if out == nil {
		return nil
	}
	return json.Unmarshal(text, out)
}

// start starts the server and returns when it is ready.
func (s *service) start(ctx context.Context) (err error) {
	if s.process != nil {
		s.earlierPeak = max(s.earlierPeak, s.process.takePeak())
	}
	began := time.Now()
	s.process, err = start(ctx, s.program, "serve", "--tls", "off", "--http", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--data", s.data,
		"--base-host", baseHost, "--client-tag-host", tagHost, "--cname-target", cnameTarget, "--log-format", "json")
	if err != nil {
		return err
	}
	if s.admin, err = s.await(ctx, logged("admin listening", "address")); err != nil {
		return err
	}
	address, err := s.await(ctx, logged("listening", "http"))
	if err != nil {
		return err
	}
	for {
		if _, err = s.page(ctx, "/readyz"); err == nil {
			break
		}
		if time.Since(began) > time.Minute {
			return fmt.Errorf("mtagd is not ready after a minute: %w", err)
		}
		time.Sleep(time.Millisecond)
	}
	s.ready = time.Since(began)
	t, err := parseTarget("http://"+address, baseHost)
	if err != nil {
		return err
	}
	s.api = newClient(t, s.key)
	s.api.tagHost = tagHost
	return nil
}

// logged finds a value in a line of the log.
func logged(message, key string) func(line string) string {
	return func(line string) string {
		entry := map[string]any{}
		if json.Unmarshal([]byte(line), &entry) != nil || entry["msg"] != message {
			return ""
		}
		value, _ := entry[key].(string)
		return value
	}
}

// page fetches an admin page.
func (s *service) page(ctx context.Context, path string) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+s.admin+path, nil)
	if err != nil {
		return nil, err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = errors.New(strings.TrimSpace(string(body)))
	}
	return body, err
}

// takePeak returns the most anonymous memory of its processes since it was last called.
func (s *service) takePeak() int64 {
	taken := max(s.earlierPeak, s.process.takePeak())
	s.earlierPeak = 0
	return taken
}

// mark is where the events of a dataset's first tag go.
func (s *service) mark(d *dataset) target {
	t := s.api.target
	t.host, t.path = d.Tags[0].Host, "/mark/"+d.Tags[0].ID
	return t
}

// startBare starts the ceiling.
func startBare(ctx context.Context) (*process, target, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, target{}, err
	}
	p, err := start(ctx, self, "bare")
	if err != nil {
		return nil, target{}, err
	}
	address, err := p.await(ctx, func(line string) string { return line })
	if err != nil {
		return nil, target{}, err
	}
	t, err := parseTarget("http://"+address+"/mark/bare", "")
	return p, t, err
}
