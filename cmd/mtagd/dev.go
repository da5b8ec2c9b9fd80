package main

import (
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"html/template"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/valyala/fasthttp"

	"mtagd/store"
)

// devCommand is "mtagd dev": the whole service on one loopback address, ready to be tried.
type devCommand struct {
	HTTP string `name:"http" default:"127.0.0.1:8080" placeholder:"ADDR" help:"Where to answer (default ${default})."`
}

// devCNAMETarget can be in nobody's DNS: in development mode, verify finds no tag host connected.
const devCNAMETarget = "cname.mtagd.localhost"

// Run serves until a signal ends it.
func (c *devCommand) Run(p *process) error {
	if err := checkAddr(c.HTTP); err != nil {
		return &usageError{where: p.origin.of("http"), err: err}
	}
	host := devHost(c.HTTP)
	return serve(p.ctx, config{
		Data:          p.data,
		HTTP:          c.HTTP,
		BaseHost:      host,
		ClientTagHost: host,
		CNAMETarget:   devCNAMETarget,
		Log:           slog.New(slog.NewTextHandler(p.stderr, &slog.HandlerOptions{Level: slog.LevelWarn})),
		Dev:           p.stdout,
	})
}

// devHost is the host under which a listening address is reached from this machine.
func devHost(address string) string {
	host, _, _ := net.SplitHostPort(address) // was checked
	if ip, err := netip.ParseAddr(host); host == "" || (err == nil && ip.IsUnspecified()) {
		return "127.0.0.1"
	}
	return strings.ToLower(host)
}

// devTagURL gives every tag host the port that development mode listens on.
func devTagURL(listening net.Addr) func(host string) string {
	_, port, _ := net.SplitHostPort(listening.String()) // a listener's address has a port
	return func(host string) string { return "http://" + net.JoinHostPort(host, port) }
}

// demoShop is a merchant of a demo partner, with a client-side tag, and the page that it is installed on.
type demoShop struct {
	url    string // of the service
	apiKey store.APIKey
	page   []byte
}

// demoKeyName is a file in the data directory with the demo partner's API key, so that each start
// shows the same one.
const demoKeyName = "demo.key"

//go:embed demo.html
var demoPage string

var demoTemplate = template.Must(template.New("demo").Parse(demoPage))

// openDemoShop finds the demo partner, its merchant and its tag in the engine, and creates what is missing.
func openDemoShop(ctx context.Context, engine store.Engine, data, url string) (*demoShop, error) {
	partner, apiKey, err := demoPartner(ctx, engine, filepath.Join(data, demoKeyName))
	if err != nil {
		return nil, err
	}
	merchants, _, err := engine.Merchants(ctx, partner, 0, 1)
	if err != nil {
		return nil, err
	}
	if len(merchants) == 0 {
		m, err := engine.AddMerchant(ctx, partner, "Demo shop", "")
		if err != nil {
			return nil, err
		}
		merchants = append(merchants, m)
	}
	tag, _, err := engine.GenerateTag(ctx, merchants[0].ID, store.ClientSide, "")
	if err != nil {
		return nil, err
	}

	var page bytes.Buffer
	err = demoTemplate.Execute(&page, struct {
		URL        string
		TagID      store.TagID
		MerchantID store.MerchantID
	}{url, tag.ID, merchants[0].ID})
	return &demoShop{url: url, apiKey: apiKey, page: page.Bytes()}, err
}

// demoPartner returns the partner whose key is in the file. A key that the engine does not know, because its
// data was removed, or that was revoked is replaced, together with its partner.
func demoPartner(ctx context.Context, engine store.Engine, file string) (store.PartnerID, store.APIKey, error) {
	text, err := os.ReadFile(file)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", "", err
	}
	apiKey := store.APIKey(strings.TrimSpace(string(text)))
	if id, err := apiKey.ID(); err == nil {
		if key, ok := engine.Directory().Key(id); ok && apiKey.Matches(key) && key.Valid(time.Now()) {
			return key.Partner, apiKey, nil
		}
	}

	partner, err := engine.AddPartner(ctx, "Demo partner")
	if err != nil {
		return "", "", err
	}
	_, apiKey, err = engine.IssueKey(ctx, partner.ID, 0)
	if err != nil {
		return "", "", err
	}
	return partner.ID, apiKey, os.WriteFile(file, []byte(apiKey+"\n"), 0o600)
}

// serve answers below /demo/.
func (d *demoShop) serve(ctx *fasthttp.RequestCtx) {
	if string(ctx.Path()) != "/demo/" {
		ctx.NotFound()
		return
	}
	ctx.SetContentType("text/html; charset=utf-8")
	ctx.Response.Header.Set("Cache-Control", "no-store")
	ctx.SetBody(d.page)
}

// announce tells a developer what there is to try. It shows the demo partner's key, which is of use on this
// machine alone.
func (d *demoShop) announce(w io.Writer, data string) error {
	_, err := fmt.Fprintf(w, `mtagd runs in development mode; stop it with Ctrl-C.

  Partner API  %[1]s/v1/partners
  API key      %[2]s
  Demo page    %[1]s/demo/
  Data         %[3]s

Try it:

  curl -H "Authorization: Bearer %[2]s" %[1]s/v1/partners/merchant

`, d.url, d.apiKey, data)
	return err
}
