package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"
)

// healthCommand is "mtagd health", for container images that contain no HTTP client.
type healthCommand struct {
	Admin      string `default:"${admin}" placeholder:"ADDR" help:"Address of the server's admin pages (default ${default})."`
	AdminToken string `name:"admin-token" placeholder:"TOKEN" help:"Bearer token of the admin pages. Without it, a server that has a token does not say why it is not ready. It is a secret: set it in the environment or in the config file."`
}

// healthTimeout limits the request. It is shorter than the 30 s after which Docker gives up.
const healthTimeout = 10 * time.Second

// Run asks /readyz. It returns an error if no server answers, or if the server does not accept events.
func (c *healthCommand) Run(p *process) error {
	if c.Admin == adminOff {
		return errors.New("the health is unknown: the admin pages are off")
	}
	if err := checkAddr(c.Admin); err != nil {
		return &usageError{where: p.origin.of("admin"), err: err}
	}
	if err := checkAdminToken(&c.AdminToken); err != nil {
		return &usageError{where: p.origin.of("admin-token"), err: err}
	}
	status, text, err := askAdmin(p.ctx, c.Admin, c.AdminToken, readyPage)
	if err != nil {
		return fmt.Errorf("no answer: %w", err)
	}
	if status != http.StatusOK {
		return errors.New(text)
	}
	_, err = fmt.Fprintln(p.stdout, text)
	return err
}

// askAdmin reads an admin page.
func askAdmin(ctx context.Context, address, token, path string) (status int, text string, err error) {
	ctx, cancel := context.WithTimeout(ctx, healthTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+path, nil)
	if err != nil {
		return 0, "", err
	}
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}} // without the proxy of the environment
	response, err := client.Do(request)
	if err != nil {
		return 0, "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	return response.StatusCode, strings.TrimSpace(string(body)), err
}
