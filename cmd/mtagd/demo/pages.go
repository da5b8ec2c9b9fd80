package demo

import (
	"bytes"
	"crypto/rand"
	"embed"
	"fmt"
	"html/template"
	"path"
	"strings"

	"github.com/valyala/fasthttp"

	"mtagd/partnerapi"
	"mtagd/store"
)

//go:embed site
var site embed.FS

// templates are the templates of the pages, by the names that shop.js uses.
var templates = map[string]*template.Template{
	"home":      parsePage("home.html"),
	"product":   parsePage("product.html"),
	"cart":      parsePage("cart.html"),
	"checkout":  parsePage("checkout.html"),
	"thank-you": parsePage("thanks.html"),
}

func parsePage(file string) *template.Template {
	return template.Must(template.ParseFS(site, "site/layout.html", "site/drawings.html", "site/"+file))
}

// Serve answers requests below /demo/, and redirects / there. It passes all other requests to the partner API.
func (s *Shop) Serve(ctx *fasthttp.RequestCtx) {
	const root = "/demo/"
	if string(ctx.Path()) == "/" {
		ctx.Response.Header.Set("Location", root)
		ctx.SetStatusCode(fasthttp.StatusFound)
		return
	}
	name, ok := strings.CutPrefix(string(ctx.Path()), root)
	if !ok {
		s.API(ctx)
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
		s.page(ctx, view{Page: "home", Title: "Stoneware", Query: query, Shown: search(query)})
	case "cart":
		s.page(ctx, view{Page: "cart", Title: "Cart"})
	case "checkout":
		s.page(ctx, view{Page: "checkout", Title: "Checkout"})
	case "thank-you":
		s.page(ctx, view{Page: "thank-you", Title: "Thank you"})
	case "events":
		s.events(ctx)
	case "shop.css", "shop.js", "consent.js", "panel.js":
		s.file(ctx, name)
	default:
		id, ok := strings.CutPrefix(name, "product/")
		product, known := findProduct(id)
		if !ok || !known {
			ctx.NotFound()
			return
		}
		s.page(ctx, view{Page: "product", Title: product.Name, Product: product, Shown: otherProducts(product)})
	}
}

// view is what a page shows.
type view struct {
	Page, Title string
	Query       string
	Product     product
	Shown       []product

	// Set for every page.
	Snippet template.HTML
	TagID   store.TagID
	All     []product
	Glazes  []string
}

// page renders a page. Its Content-Security-Policy allows the shop's own scripts and the tag's, and nothing else: a tag
// must work on sites with such a policy.
func (s *Shop) page(ctx *fasthttp.RequestCtx, v view) {
	nonce := rand.Text()
	// The snippet that partners get, with two changes that a site makes: the nonce of its policy, and the visitor's
	// choice of consent.
	v.Snippet = template.HTML(strings.NewReplacer(
		"<script>", `<script nonce="`+nonce+`">`,
		"consent: false", "consent: localStorage.getItem('consent') === 'yes'",
	).Replace(partnerapi.Snippet(s.URL, s.tag)))
	v.TagID, v.All, v.Glazes = s.tag, products, glazes
	var b bytes.Buffer
	if err := templates[v.Page].ExecuteTemplate(&b, "layout", v); err != nil {
		ctx.Error(err.Error(), fasthttp.StatusInternalServerError)
		return
	}
	ctx.Response.Header.Set("Content-Security-Policy", fmt.Sprintf("default-src 'none'; script-src 'self' 'nonce-%[1]s' %[2]s; "+
		"connect-src 'self' %[2]s; style-src 'self'; img-src data:; form-action 'self'; base-uri 'none'", nonce, s.URL))
	ctx.SetContentType("text/html; charset=utf-8")
	ctx.SetBody(b.Bytes())
}

func (s *Shop) file(ctx *fasthttp.RequestCtx, name string) {
	b, err := site.ReadFile("site/" + name)
	if err != nil {
		ctx.Error(err.Error(), fasthttp.StatusInternalServerError)
		return
	}
	ctx.SetContentType(map[string]string{".css": "text/css", ".js": "text/javascript"}[path.Ext(name)] + "; charset=utf-8")
	ctx.SetBody(b)
}

// events returns the merchant's latest events as the partner API lists them. The API key does not leave the server.
func (s *Shop) events(ctx *fasthttp.RequestCtx) {
	var r fasthttp.RequestCtx
	r.Init(&fasthttp.Request{}, nil, nil)
	r.Request.SetRequestURI(s.URL + "/v1/partners/events?limit=50&merchantId=" + string(s.merchant))
	r.Request.Header.Set("Authorization", "Bearer "+string(s.apiKey))
	s.API(&r)
	ctx.SetStatusCode(r.Response.StatusCode())
	ctx.SetContentTypeBytes(r.Response.Header.ContentType())
	ctx.SetBody(r.Response.Body())
}
