// Package demo is a small shop for development mode, to see a tag work. The shop is a merchant of a demo partner, and
// its pages have the merchant's client-side tag installed. A banner asks each visitor for consent. A panel
// beside the pages shows what the partner's events listing returns, and what the tag knows about the visitor.
//
//	shop.go      the shop: its partner, merchant and tag
//	history.go   two merchants more, with three months of made-up events
//	pages.go     what it sells, what it answers below /demo/, and the HTML of its pages
//	site/        the products, and parts, style and scripts of the pages
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
	partner  store.PartnerID
	apiKey   store.APIKey
	merchant store.MerchantID
	tag      store.TagID
}

// Open finds the demo partner, its merchant and its tag in the engine, and creates what is missing.
func Open(ctx context.Context, c Config) (*Shop, error) {
	s := &Shop{Config: c}
	if err := s.findPartner(ctx); err != nil {
		return nil, err
	}
	merchants, _, err := s.Engine.Merchants(ctx, store.MerchantQuery{Partner: s.partner, Limit: 1})
	if err != nil {
		return nil, err
	}
	if len(merchants) == 0 {
		m, err := s.Engine.AddMerchant(ctx, s.partner, store.NewMerchant{Name: "Demo shop"})
		if err != nil {
			return nil, err
		}
		merchants = append(merchants, m)
		if err := s.addHistory(ctx, s.partner, time.Now()); err != nil {
			return nil, err
		}
	}
	tag, _, err := s.Engine.GenerateTag(ctx, merchants[0].ID, store.ClientSide, "")
	s.merchant, s.tag = merchants[0].ID, tag.ID
	return s, err
}

// findPartner finds the partner of the key in the key file. If that key is unknown (the data was removed), revoked or
// expired, it creates a new partner with a new key.
func (s *Shop) findPartner(ctx context.Context) error {
	text, err := os.ReadFile(s.KeyFile)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	s.apiKey = store.APIKey(strings.TrimSpace(string(text)))
	if partner, _, ok := s.Engine.Directory().Authenticate(s.apiKey, time.Now()); ok {
		s.partner = partner.ID
		return nil
	}
	partner, err := s.Engine.AddPartner(ctx, "Demo partner")
	if err != nil {
		return err
	}
	s.partner = partner.ID
	if _, s.apiKey, err = s.Engine.IssueKey(ctx, partner.ID, store.KeyOptions{}); err != nil {
		return err
	}
	return os.WriteFile(s.KeyFile, []byte(s.apiKey+"\n"), 0o600)
}

// Announce prints the addresses and the API key to try, a link that signs in to the console, and data, the data directory.
// Neither is a secret: the service can be reached from this machine only.
func (s *Shop) Announce(ctx context.Context, w io.Writer, data string) error {
	_, link, err := s.Engine.AddLink(ctx, s.partner)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(w, `mtagd runs in development mode. Stop it with Ctrl-C.

  Demo page    %[1]s/demo/
  Console      %[1]s/console/#link=%[4]s
               once, within 15 minutes; later sign in with the API key
  Partner API  %[1]s/v1/partners
  API key      %[2]s
  Data         %[3]s

Try it:

  curl -H "Authorization: Bearer %[2]s" %[1]s/v1/partners/merchant

`, s.URL, s.apiKey, data, link)
	return err
}
