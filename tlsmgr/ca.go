package tlsmgr

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"sync"
	"time"
)

const (
	directoryTimeout = 10 * time.Second
	directoryRetry   = 10 * time.Minute // after one that could not be read
	directoryRefresh = 24 * time.Hour   // after one that was
	maxDirectory     = 64 << 10         // bytes
)

// ca is the CA that certificates come from, as far as CAA records are concerned.
type ca struct {
	directory string // URL of its ACME directory; "": no CA
	client    *http.Client
	log       *slog.Logger
	now       func() time.Time

	mu      sync.Mutex
	known   []string
	due     time.Time     // when the directory is to be read again
	reading chan struct{} // closed when the reading that is under way has ended; nil: none is
}

func newCA(cfg Config, log *slog.Logger, now func() time.Time) *ca {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.TLSClientConfig = &tls.Config{RootCAs: cfg.Roots}
	client := &http.Client{Transport: transport, Timeout: directoryTimeout}
	return &ca{directory: cfg.CA, client: client, log: log, now: now}
}

// identities are the names by which CAA records may name the CA (RFC 8555, section 7.1.1,
// caaIdentities). None are known when there is no CA, when its directory names none, or as long as that
// could not be read. The first call waits for the directory, until ctx ends.
func (c *ca) identities(ctx context.Context) []string {
	c.mu.Lock()
	if c.directory != "" && c.reading == nil && !c.now().Before(c.due) {
		c.reading = make(chan struct{})
		go c.read(c.reading)
	}
	known, reading := c.known, c.reading
	c.mu.Unlock()
	if known != nil || reading == nil {
		return known
	}
	select {
	case <-reading:
	case <-ctx.Done():
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.known
}

func (c *ca) read(done chan struct{}) {
	identities, err := c.readDirectory()
	c.mu.Lock()
	defer c.mu.Unlock()
	if err != nil {
		c.log.Warn("the CA's directory cannot be read, so CAA records are not checked against it",
			"directory", c.directory, "error", err)
		c.due = c.now().Add(directoryRetry)
	} else {
		c.known, c.due = identities, c.now().Add(directoryRefresh)
	}
	c.reading = nil
	close(done)
}

func (c *ca) readDirectory() ([]string, error) {
	answer, err := c.client.Get(c.directory)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("status %d", answer.StatusCode)
	}
	var directory struct {
		Meta struct {
			CAAIdentities []string `json:"caaIdentities"`
		} `json:"meta"`
	}
	err = json.NewDecoder(io.LimitReader(answer.Body, maxDirectory)).Decode(&directory)
	return directory.Meta.CAAIdentities, err
}
