package dns

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"
)

const (
	directoryTimeout = 10 * time.Second
	directoryRetry   = 10 * time.Minute // after the directory could not be read
	directoryRefresh = 24 * time.Hour   // after it was read
	maxDirectory     = 64 << 10         // bytes
)

// ca reads, from the CA's ACME directory, the names that CAA records use for the CA.
type ca struct {
	directory string // URL of the CA's ACME directory; empty: no CA
	client    *http.Client
	log       *slog.Logger
	now       func() time.Time

	reading singleflight.Group

	mu    sync.Mutex
	known []string
	due   time.Time // when to read the directory again
}

func newCA(directory string, roots *x509.CertPool, log *slog.Logger, now func() time.Time) *ca {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.TLSClientConfig = &tls.Config{RootCAs: roots}
	client := &http.Client{Transport: transport, Timeout: directoryTimeout}
	return &ca{directory: directory, client: client, log: log, now: now}
}

// identities returns the names that CAA records may use for the CA (RFC 8555, section 7.1.1, caaIdentities). It returns
// none if there is no CA, if its directory lists none, or if the directory was never read. While there are none, a call
// waits for a read in progress, until ctx ends.
func (c *ca) identities(ctx context.Context) []string {
	c.mu.Lock()
	known, due := c.known, c.due
	c.mu.Unlock()
	if c.directory == "" || c.now().Before(due) {
		return known
	}
	read := c.reading.DoChan("", func() (any, error) { return c.read(), nil })
	if known != nil {
		return known
	}
	select {
	case got := <-read:
		return got.Val.([]string)
	case <-ctx.Done():
		return nil
	}
}

// read reads the directory. If it cannot be read, what was known before counts.
func (c *ca) read() []string {
	identities, err := c.readDirectory()
	c.mu.Lock()
	defer c.mu.Unlock()
	if err != nil {
		c.log.Warn("the CA's directory cannot be read, so CAA records are not checked",
			"directory", c.directory, "error", err)
		c.due = c.now().Add(directoryRetry)
	} else {
		c.known, c.due = identities, c.now().Add(directoryRefresh)
	}
	return c.known
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
