package demo

import (
	"embed"
	"fmt"
	"html"
	"strconv"
	"strings"
)

//go:embed site
var site embed.FS

// fill returns a file of site with values in place of {{name}}. pairs are names and their values, which are HTML. It is no
// html/template, because that calls methods by a name that the linker does not know: the binary would be larger by megabytes.
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
		"facts", facts.String(), "drawing", p.drawing(), "shelf", shelf(otherProducts(p)))
}

// drawing returns the drawing, 400 by 300. Its colours come from the glaze of the element around it.
func (p product) drawing() string {
	return fill("drawings/"+p.ID+".svg", "name", html.EscapeString(p.Name))
}

// price returns the price with two decimals.
func (p product) price() string { return strconv.FormatFloat(p.Price, 'f', 2, 64) }
