// Package demo is a small shop for development mode, to see a tag work. The shop is a merchant of a demo partner, and
// its pages have the merchant's client-side tag installed. A banner asks each visitor for consent. A panel
// beside the pages shows what the partner's events listing returns, and what the tag knows about the visitor.
//
//	shop.go      the shop: its partner, merchant and tag
//	pages.go     what it answers below /demo/
//	products.go  what it sells
//	html.go      the HTML of its pages
//	site/        parts, style and scripts of the pages
package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"time"

	"github.com/valyala/fasthttp"

	"mtagd/store"
)

// Config is what the shop needs.
type Config struct {
	Engine store.Engine
	API    fasthttp.RequestHandler // the partner API
	URL    string                  // address of the service, which is also the tag host's
	// KeyFile contains the API key of the demo partner, so that each start shows the same key. Open creates it.
	KeyFile string
}

// Shop is the demo shop.
type Shop struct {
	Config
	apiKey   store.APIKey
	merchant store.MerchantID
	tag      store.TagID
}

// Open finds the demo partner, its merchant and its tag in the engine, and creates what is missing.
func Open(ctx context.Context, c Config) (*Shop, error) {
	s := &Shop{Config: c}
	partner, err := s.findPartner(ctx)
	if err != nil {
		return nil, err
	}
	merchants, _, err := s.Engine.Merchants(ctx, store.MerchantQuery{Partner: partner, Limit: 1})
	if err != nil {
		return nil, err
	}
	if len(merchants) == 0 {
		m, err := s.Engine.AddMerchant(ctx, partner, store.NewMerchant{Name: "Demo shop"})
		if err != nil {
			return nil, err
		}
		merchants = append(merchants, m)
	}
	tag, _, err := s.Engine.GenerateTag(ctx, merchants[0].ID, store.ClientSide, "")
	s.merchant, s.tag = merchants[0].ID, tag.ID
	return s, err
}

// findPartner returns the partner of the key in the key file. If that key is unknown (the data was removed), revoked or
// expired, it creates a new partner with a new key.
func (s *Shop) findPartner(ctx context.Context) (store.PartnerID, error) {
	text, err := os.ReadFile(s.KeyFile)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	s.apiKey = store.APIKey(strings.TrimSpace(string(text)))
	if partner, _, ok := s.Engine.Directory().Authenticate(s.apiKey, time.Now()); ok {
		return partner.ID, nil
	}
	partner, err := s.Engine.AddPartner(ctx, "Demo partner")
	if err != nil {
		return "", err
	}
	_, s.apiKey, err = s.Engine.IssueKey(ctx, partner.ID, store.KeyOptions{})
	if err != nil {
		return "", err
	}
	return partner.ID, os.WriteFile(s.KeyFile, []byte(s.apiKey+"\n"), 0o600)
}

// Announce prints the addresses and the API key to try, and data, the data directory. The key is no secret: the service
// can be reached from this machine only.
func (s *Shop) Announce(w io.Writer, data string) error {
	_, err := fmt.Fprintf(w, `mtagd runs in development mode. Stop it with Ctrl-C.

  Partner API  %[1]s/v1/partners
  API key      %[2]s
  Console      %[1]s/console/
  Demo page    %[1]s/demo/
  Data         %[3]s

Try it:

  curl -H "Authorization: Bearer %[2]s" %[1]s/v1/partners/merchant

`, s.URL, s.apiKey, data)
	return err
}
