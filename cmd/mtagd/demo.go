package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"embed"
	"errors"
	"fmt"
	"html/template"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"

	"github.com/valyala/fasthttp"

	"mtagd/partnerapi"
	"mtagd/store"
)

// demoShop is a shop to try a tag with: a merchant of a demo partner with a client-side tag, and pages that have
// it installed. A panel beside them shows what the partner's listing returns.
type demoShop struct {
	url      string // of the service
	apiKey   store.APIKey
	merchant store.MerchantID
	tag      store.TagID

	api fasthttp.RequestHandler // the partner API
}

// demoKeyName is a file in the data directory with the demo partner's API key, so that each start
// shows the same one.
const demoKeyName = "demo.key"

//go:embed demo
var demoFiles embed.FS

// demoPages are the pages' templates, by the name that the script knows them by.
var demoPages = map[string]*template.Template{
	"home":      demoPage("home.html"),
	"product":   demoPage("product.html"),
	"cart":      demoPage("cart.html"),
	"checkout":  demoPage("checkout.html"),
	"thank-you": demoPage("thanks.html"),
}

func demoPage(file string) *template.Template {
	return template.Must(template.ParseFS(demoFiles, "demo/layout.html", "demo/drawings.html", "demo/"+file))
}

// openDemoShop finds the demo partner, its merchant and its tag in the engine, and creates what is missing.
func openDemoShop(ctx context.Context, engine store.Engine, data, url string, api fasthttp.RequestHandler) (*demoShop, error) {
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
	return &demoShop{url: url, apiKey: apiKey, merchant: merchants[0].ID, tag: tag.ID, api: api}, err
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

// serve answers below /demo/; the rest of the host is the partner API's.
func (d *demoShop) serve(ctx *fasthttp.RequestCtx) {
	name, ok := strings.CutPrefix(string(ctx.Path()), "/demo/")
	if !ok {
		d.api(ctx)
		return
	}
	ctx.Response.Header.Set("Cache-Control", "no-store")
	if !ctx.IsGet() && !ctx.IsHead() {
		ctx.Error("Method not allowed", fasthttp.StatusMethodNotAllowed)
		return
	}
	query := strings.TrimSpace(string(ctx.QueryArgs().Peek("q")))
	switch name {
	case "":
		d.page(ctx, demoView{Page: "home", Title: "Stoneware", Query: query, Shown: searchDemo(query)})
	case "cart":
		d.page(ctx, demoView{Page: "cart", Title: "Cart"})
	case "checkout":
		d.page(ctx, demoView{Page: "checkout", Title: "Checkout"})
	case "thank-you":
		d.page(ctx, demoView{Page: "thank-you", Title: "Thank you"})
	case "events":
		d.events(ctx)
	case "shop.css", "shop.js", "panel.js":
		d.file(ctx, name)
	default:
		id, ok := strings.CutPrefix(name, "product/")
		product, known := findDemoProduct(id)
		if !ok || !known {
			ctx.NotFound()
			return
		}
		d.page(ctx, demoView{Page: "product", Title: product.Name, Product: product, Shown: demoBeside(product)})
	}
}

// demoView is what a page shows.
type demoView struct {
	Page, Title string
	Query       string
	Product     demoProduct
	Shown       []demoProduct

	// Set for every page.
	Snippet template.HTML
	TagID   store.TagID
	All     []demoProduct
	Glazes  []string
}

// page renders a page. It may run its own scripts and the tag's, and nothing else: a tag must work where
// that is the rule.
func (d *demoShop) page(ctx *fasthttp.RequestCtx, v demoView) {
	nonce := rand.Text()
	// As partners get it, with what a site adds: the nonce of its policy, and what the visitor consents to.
	v.Snippet = template.HTML(strings.NewReplacer(
		"<script>", `<script nonce="`+nonce+`">`,
		"consent: true", "consent: localStorage.getItem('consent') !== 'no'",
	).Replace(partnerapi.Snippet(d.url, d.tag)))
	v.TagID, v.All, v.Glazes = d.tag, demoProducts, demoGlazes
	var b bytes.Buffer
	if err := demoPages[v.Page].ExecuteTemplate(&b, "layout", v); err != nil {
		ctx.Error(err.Error(), fasthttp.StatusInternalServerError)
		return
	}
	ctx.Response.Header.Set("Content-Security-Policy", fmt.Sprintf("default-src 'none'; script-src 'self' 'nonce-%[1]s' %[2]s; "+
		"connect-src 'self' %[2]s; style-src 'self'; img-src data:; form-action 'self'; base-uri 'none'", nonce, d.url))
	ctx.SetContentType("text/html; charset=utf-8")
	ctx.SetBody(b.Bytes())
}

func (d *demoShop) file(ctx *fasthttp.RequestCtx, name string) {
	b, err := demoFiles.ReadFile("demo/" + name)
	if err != nil {
		ctx.Error(err.Error(), fasthttp.StatusInternalServerError)
		return
	}
	ctx.SetContentType(map[string]string{".css": "text/css", ".js": "text/javascript"}[path.Ext(name)] + "; charset=utf-8")
	ctx.SetBody(b)
}

// events answers with the merchant's latest events as the partner API lists them. The API key stays here.
func (d *demoShop) events(ctx *fasthttp.RequestCtx) {
	var r fasthttp.RequestCtx
	r.Init(&fasthttp.Request{}, nil, nil)
	r.Request.SetRequestURI(d.url + "/v1/partners/events?limit=50&merchantId=" + string(d.merchant))
	r.Request.Header.Set("Authorization", "Bearer "+string(d.apiKey))
	d.api(&r)
	ctx.SetStatusCode(r.Response.StatusCode())
	ctx.SetContentTypeBytes(r.Response.Header.ContentType())
	ctx.SetBody(r.Response.Body())
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
