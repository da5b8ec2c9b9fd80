// Package server runs the measured servers, each in its own process, and reads their CPU time, memory and disk writes.
//
// Read in this order:
//
//	mtagd.go    mtagd with one partner, made through its own commands
//	postgres.go a primary and a synchronous standby, and the peer of the engine on PostgreSQL
//	process.go  a process, such as the synced file: its output, its end, its CPU time and memory
package server

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"mtagd/bench/mtagbench/dataset"
	"mtagd/bench/mtagbench/load"
)

// Nothing resolves these hosts: every connection goes to the server's address.
const (
	baseHost     = "api.mtagd.test"
	tagHost      = "tags.mtagd.test"
	cnameTarget  = "cname.mtagd.test"
	trackingHost = "t.partner-domain.com"
)

// Mtagd is an mtagd with one partner.
type Mtagd struct {
	*Process // the current one; nil before the first start

	API          *dataset.Client
	StartupTime  time.Duration // from the last start to /readyz
	group        *Group
	key          string // of the partner API
	program      string
	data         string   // its directory
	storage      []string // flags that name where its data is
	adminAddress string
	earlierPeak  int64 // the peak memory of earlier processes, bytes
}

// StartMtagd makes a partner with preverified access in an empty or new data directory, and starts the server on it.
func (g *Group) StartMtagd(program, data string) (*Mtagd, error) {
	m := &Mtagd{group: g, program: program, data: data, storage: []string{"--data", data}}
	return m, m.open()
}

// StartNodes makes such a partner in an empty database, and starts nodes on it. Each has its own directory below dir.
func (g *Group) StartNodes(program, database, dir string, n int) (nodes []*Mtagd, err error) {
	for i := range n {
		data := filepath.Join(dir, "node"+strconv.Itoa(i+1))
		m := &Mtagd{group: g, program: program, data: data, storage: []string{"--data", data, "--store", database}}
		if i > 0 {
			m.key = nodes[0].key
		}
		if err := m.open(); err != nil {
			return nodes, err
		}
		nodes = append(nodes, m)
	}
	return nodes, nil
}

// open starts the server for the first time. Without a key it first makes a partner with preverified access, and a key.
func (m *Mtagd) open() error {
	if err := os.MkdirAll(m.data, 0o700); err != nil {
		return err
	}
	if m.key != "" {
		return m.Start()
	}
	var partner struct{ PartnerID string }
	if err := m.operate(&partner, "partner", "add", "--name", "Benchmark"); err != nil {
		return err
	}
	if err := m.operate(nil, "partner", "preverify", partner.PartnerID, "--domain", trackingHost); err != nil {
		return err
	}
	var key struct{ APIKey string }
	if err := m.operate(&key, "key", "issue", "--partner", partner.PartnerID); err != nil {
		return err
	}
	m.key = key.APIKey
	return m.Start()
}

// operate runs an operator command, and decodes what it prints unless out is nil.
func (m *Mtagd) operate(out any, args ...string) error {
	command := exec.CommandContext(m.group.ctx, m.program, append(args, m.storage...)...)
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

// Start starts the server and returns once it is ready. If it fails, the process has ended.
func (m *Mtagd) Start() error {
	if m.Process != nil {
		m.earlierPeak = max(m.earlierPeak, m.Process.takePeakMemory())
	}
	began := time.Now()
	process, err := m.group.start(m.program, append([]string{"serve", "--tls", "off", "--http", "127.0.0.1:0", "--admin", "127.0.0.1:0",
		"--base-host", baseHost, "--client-tag-host", tagHost, "--cname-target", cnameTarget, "--log-format", "json",
		"--limits", "off"}, m.storage...)...) // the load generator is one address
	if err != nil {
		return err
	}
	m.Process = process
	address, err := m.waitUntilReady()
	if err != nil {
		return errors.Join(err, process.Kill())
	}
	m.StartupTime = time.Since(began)
	m.API, err = dataset.NewClient(address, baseHost, m.key)
	return err
}

const readyTimeout = time.Minute

// waitUntilReady returns the address of the tag server and the partner API.
func (m *Mtagd) waitUntilReady() (address string, err error) {
	if m.adminAddress, err = m.findInOutput(loggedValue("admin listening", "address")); err != nil {
		return "", err
	}
	if address, err = m.findInOutput(loggedValue("listening", "http")); err != nil {
		return "", err
	}
	for began := time.Now(); ; time.Sleep(time.Millisecond) {
		if _, err = m.AdminPage("/readyz"); err == nil {
			return address, nil
		}
		if time.Since(began) > readyTimeout {
			return "", fmt.Errorf("mtagd was not ready in %v: %w", readyTimeout, err)
		}
	}
}

// loggedValue finds the value of a key in a line of the log with the given message.
func loggedValue(message, key string) func(line string) string {
	return func(line string) string {
		entry := map[string]any{}
		if json.Unmarshal([]byte(line), &entry) != nil || entry["msg"] != message {
			return ""
		}
		value, _ := entry[key].(string)
		return value
	}
}

func (m *Mtagd) AdminPage(path string) ([]byte, error) {
	request, err := http.NewRequestWithContext(m.group.ctx, http.MethodGet, "http://"+m.adminAddress+path, nil)
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

// TakePeakMemory is Process.takePeakMemory, and includes processes before a restart.
func (m *Mtagd) TakePeakMemory() int64 {
	taken := max(m.earlierPeak, m.Process.takePeakMemory())
	m.earlierPeak = 0
	return taken
}

// MarkTarget is where the events of a dataset's first tag are sent.
func (m *Mtagd) MarkTarget(d *dataset.Dataset) load.Target {
	t := m.API.Target
	t.Host, t.Path = d.Tags[0].Host, "/mark/"+d.Tags[0].ID
	return t
}

// DiskUsage is what the data directory takes on disk, in bytes.
func (m *Mtagd) DiskUsage() (used int64, err error) {
	out, err := exec.Command("du", "--summarize", "--block-size=1", m.data).Output()
	if err == nil {
		_, err = fmt.Sscan(string(out), &used)
	}
	return used, err
}
