package sdk_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"os/exec"
	"sync/atomic"
	"testing"
)

// service is a running "mtagd serve".
type service struct {
	data string
	key  string // the API key of its only partner
	cmd  *exec.Cmd
	addr atomic.Pointer[string] // atomic: start changes it while pages are using it
}

// startService starts a service in a new data directory, with one partner.
func startService(data string) (*service, error) {
	s := &service{data: data}
	if err := os.Mkdir(data, 0o700); err != nil {
		return nil, err
	}
	var partner struct{ PartnerID string }
	if err := runCommand(&partner, "partner", "add", "--name", "Partner", "--data", data); err != nil {
		return nil, err
	}
	var key struct{ APIKey string }
	if err := runCommand(&key, "key", "issue", "--partner", partner.PartnerID, "--data", data); err != nil {
		return nil, err
	}
	s.key = key.APIKey
	return s, s.start()
}

// runCommand runs a command of mtagd and decodes its JSON output into result.
func runCommand(result any, args ...string) error {
	out, err := exec.Command(mtagd, args...).Output()
	if err != nil {
		return err
	}
	return json.Unmarshal(out, result)
}

// start starts the service on a free port, and waits until it listens.
func (s *service) start() error {
	s.cmd = exec.Command(mtagd, "serve", "--tls", "off", "--data", s.data, "--http", "127.0.0.1:0", "--admin", "off",
		"--base-host", "api.mtagd.test", "--client-tag-host", tagHost, "--cname-target", "cname.mtagd.test", "--log-format", "json")
	stderr, err := s.cmd.StderrPipe()
	if err != nil {
		return err
	}
	if err := s.cmd.Start(); err != nil {
		return err
	}
	lines := bufio.NewScanner(stderr)
	for lines.Scan() {
		var line struct{ Msg, HTTP string }
		if json.Unmarshal(lines.Bytes(), &line) == nil && line.Msg == "listening" {
			s.addr.Store(&line.HTTP)
			go io.Copy(io.Discard, stderr)
			return nil
		}
	}
	return errors.Join(errors.New("mtagd ended before it listened"), s.cmd.Wait())
}

// kill kills the service with SIGKILL.
func (s *service) kill() {
	s.cmd.Process.Kill() // fails only when the service has already ended
	s.cmd.Wait()
}

// call sends a request to the partner API and decodes the answer into result.
func (s *service) call(t testing.TB, method, path string, body, result any) {
	t.Helper()
	text, err := json.Marshal(body)
	if err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequest(method, "http://"+*s.addr.Load()+"/v1/partners"+path, bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	req.Host = "api.mtagd.test"
	req.Header.Set("Authorization", "Bearer "+s.key)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	if resp.StatusCode >= 300 || json.Unmarshal(answer, result) != nil {
		t.Fatalf("%s %s: %d %s", method, path, resp.StatusCode, answer)
	}
}

// newTag makes a merchant with a client-side tag.
func (s *service) newTag(t testing.TB) (merchantID, tagID string) {
	t.Helper()
	var merchant struct{ MerchantID string }
	s.call(t, "POST", "/merchant", map[string]string{"name": "Shop"}, &merchant)
	var tag struct{ TagID string }
	s.call(t, "POST", "/tracktag/generate", map[string]string{"merchantId": merchant.MerchantID, "type": "client-side"}, &tag)
	return merchant.MerchantID, tag.TagID
}
