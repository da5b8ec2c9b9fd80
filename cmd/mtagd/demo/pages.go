package demo

import (
	"crypto/rand"
	"embed"
	"encoding/json"
	"fmt"
	"html"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/valyala/fasthttp"

	"mtagd/partnerapi"
)

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
		s.page(ctx, "home", "Stoneware", query, home(query))
	case "cart":
		s.page(ctx, "cart", "Cart", "", cart())
	case "checkout":
		s.page(ctx, "checkout", "Checkout", "", fill("checkout.html"))
	case "thank-you":
		s.page(ctx, "thank-you", "Thank you", "", fill("thanks.html"))
	case "events":
		s.events(ctx)
	case "shop.css", "shop.js", "consent.js", "panel.js":
		s.file(ctx, name)
	default:
		i := slices.IndexFunc(products, func(p product) bool { return name == "product/"+p.ID })
		if i < 0 {
			ctx.NotFound()
			return
		}
		s.page(ctx, "product", products[i].Name, "", products[i].page())
	}
}

// page renders a page. name is what shop.js calls it; main is its own part, in HTML. Its Content-Security-Policy allows the
// shop's own scripts and the tag's, and nothing else: a tag must work on sites with such a policy.
func (s *Shop) page(ctx *fasthttp.RequestCtx, name, title, query, main string) {
	nonce := rand.Text()
	// The snippet that partners get, with three changes that a site makes: the nonce of its policy, the visitor's choice of
	// consent, and the part attribution.
	snippet := strings.NewReplacer(
		"<script>", `<script nonce="`+nonce+`">`,
		"consent: false", "consent: localStorage.getItem('consent') === 'yes'",
		`/script"`, `/script?with=attribution"`,
	).Replace(partnerapi.Snippet(s.URL, s.tag))
	ctx.Response.Header.Set("Content-Security-Policy", fmt.Sprintf("default-src 'none'; script-src 'self' 'nonce-%[1]s' %[2]s; "+
		"connect-src 'self' %[2]s; style-src 'self'; img-src data:; form-action 'self'; base-uri 'none'", nonce, s.URL))
	ctx.SetContentType("text/html; charset=utf-8")
	ctx.SetBodyString(fill("layout.html", "title", html.EscapeString(title), "snippet", snippet, "products", string(productsJSON),
		"page", name, "query", html.EscapeString(query), "main", main, "tag", html.EscapeString(string(s.tag))))
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

//go:embed site
var site embed.FS

// fill returns a file of site with values in place of {{name}}. pairs are names and their values, which are HTML. It is no
// html/template, which calls methods by name: the linker would keep all, megabytes of them.
func fill(file string, pairs ...string) string {
	text, err := site.ReadFile("site/" + file)
	if err != nil {
		panic(fmt.Errorf("the binary has no %s: %w", file, err))
	}
	for i := 0; i < len(pairs); i += 2 {
		pairs[i] = "{{" + pairs[i] + "}}"
	}
	return strings.NewReplacer(pairs...).Replace(string(text))
}

func home(query string) string {
	found := search(query)
	if query == "" {
		return fill("home.html", "shelf", shelf(found))
	}
	list := shelf(found)
	if list == "" {
		list = `<p class="nothing">We have nothing like that. <a href="/demo/">See everything</a></p>`
	}
	return fill("search.html", "query", html.EscapeString(query), "found", strconv.Itoa(len(found)),
		"all", strconv.Itoa(len(products)), "shelf", list)
}

func cart() string {
	var drawings strings.Builder
	for _, p := range products {
		fmt.Fprintf(&drawings, "<template data-drawing=\"%s\">%s</template>\n", p.ID, p.drawing())
	}
	return fill("cart.html", "drawings", drawings.String())
}

func shelf(shown []product) string {
	var cards strings.Builder
	for _, p := range shown {
		cards.WriteString(fill("card.html", "id", p.ID, "name", html.EscapeString(p.Name), "line", html.EscapeString(p.Line),
			"price", p.price(), "glaze", p.Glaze, "drawing", p.drawing()))
	}
	return cards.String()
}

func (p product) page() string {
	others := slices.DeleteFunc(slices.Clone(products), func(other product) bool { return other.ID == p.ID })
	var choices, facts strings.Builder
	for _, glaze := range glazes {
		checked := ""
		if glaze == p.Glaze {
			checked = " checked"
		}
		fmt.Fprintf(&choices, `<label class="glaze-%[1]s"><input type="radio" name="glaze" value="%[1]s"%[2]s><i></i>%[1]s</label> `, glaze, checked)
	}
	for _, f := range p.Facts {
		fmt.Fprintf(&facts, "<dt>%s</dt><dd>%s</dd>", html.EscapeString(f[0]), html.EscapeString(f[1]))
	}
	return fill("product.html", "id", p.ID, "name", html.EscapeString(p.Name), "category", html.EscapeString(p.Category),
		"price", p.price(), "text", html.EscapeString(p.Text), "glaze", p.Glaze, "glazes", choices.String(),
		"facts", facts.String(), "drawing", p.drawing(), "shelf", shelf(others[:3]))
}

// drawing returns the drawing, 400 by 300. Its colours come from the glaze of the element around it.
func (p product) drawing() string {
	return fill("drawings/"+p.ID+".svg", "name", html.EscapeString(p.Name))
}

func (p product) price() string { return strconv.FormatFloat(p.Price, 'f', 2, 64) }

// product is a piece that the shop sells.
type product struct {
	ID       string
	Name     string
	Category string
	Price    float64 // EUR
	Glaze    string

	Line  string      // the text in a list
	Text  string      // the text on its own page
	Facts [][2]string // pairs of a name and a value
}

var glazes = []string{"sand", "moss", "ink", "rust"}

//go:embed site/products.json
var productsJSON []byte

var products = func() (all []product) {
	if err := json.Unmarshal(productsJSON, &all); err != nil {
		panic(fmt.Errorf("site/products.json: %w", err))
	}
	return all
}()

// search finds the pieces whose texts contain the query. An empty query finds all.
func search(query string) []product {
	var found []product
	for _, p := range products {
		if strings.Contains(strings.ToLower(p.Name+" "+p.Category+" "+p.Line), strings.ToLower(query)) {
			found = append(found, p)
		}
	}
	return found
}
