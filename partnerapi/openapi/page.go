package openapi

import (
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"fmt"
	"html"
	"slices"
	"strings"

	"github.com/goccy/go-json/jsontext"
)

//go:embed page.css
var style string

// Page returns a document as an HTML page, and its Content-Security-Policy. The page loads nothing and has no script.
func Page(text []byte) (page []byte, policy string, err error) {
	d, err := readDocument(text)
	if err != nil {
		return nil, "", err
	}
	sum := sha256.Sum256([]byte(style))
	policy = "default-src 'none'; style-src 'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) +
		"'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
	return []byte(d.html()), policy, nil
}

// The page is written without html/template, because templates call methods by a name that the linker does not know: it
// would keep all exported methods of the program, which are megabytes. So all text goes through htmlBuilder.add, which
// escapes it.

// htmlBuilder builds HTML.
type htmlBuilder struct{ strings.Builder }

// add adds HTML with escaped texts in the place of each %s. A text of type markup is HTML already.
func (b *htmlBuilder) add(format string, texts ...any) {
	for i, text := range texts {
		if _, ok := text.(markup); !ok {
			texts[i] = html.EscapeString(fmt.Sprint(text))
		}
	}
	fmt.Fprintf(b, format, texts...)
}

// markup is HTML.
type markup string

// html returns the page.
func (d *document) html() string {
	var b htmlBuilder
	b.add(`<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>%s: API reference</title>
<style>%s</style>
</head>
<body>
<a class="skip" href="#main">To the reference</a>
<nav aria-label="Contents">
<p><strong>%s</strong></p>
<ul>
`, d.Info.Title, markup(style), d.Info.Title)
	for _, tag := range d.Tags {
		b.add("<li><a href=\"#%s\">%s</a>\n<ul>", groupID(tag.Name), tag.Name)
		for _, o := range d.operations {
			if slices.Contains(o.Tags, tag.Name) {
				b.add(`<li><a href="#%s">%s</a></li>`, o.ID, o.Summary)
			}
		}
		b.add("</ul></li>\n")
	}
	b.add(`<li><a href="#errors">Errors</a></li>
<li><a href="#schemas">Schemas</a></li>
</ul>
</nav>
<main id="main">
<h1>API reference</h1>
<p>%s. The same as <a href="openapi.json">OpenAPI document</a>.</p>
%s
<p>Base host: `, d.Info.Summary, prose(d.Info.Description))
	for _, s := range d.Servers {
		b.add("<code>%s</code> ", s.URL)
	}
	b.add(`</p>
<p>The examples take your API key from a variable of the shell: <code>KEY=mtp_…</code></p>
<h2 id="keys">Keys</h2>
<dl>`)
	for _, s := range d.Components.SecuritySchemes {
		b.add("<div><dt><code>%s</code></dt><dd>%s</dd></div>", s.Name, prose(s.Value.Description))
	}
	b.add("</dl>\n")
	for _, tag := range d.Tags {
		b.add("<section aria-labelledby=\"%[1]s\">\n<h2 id=\"%[1]s\">%[2]s</h2>\n%[3]s\n", groupID(tag.Name), tag.Name, prose(tag.Description))
		for _, o := range d.operations {
			if slices.Contains(o.Tags, tag.Name) {
				b.operation(o)
			}
		}
		b.add("</section>\n")
	}
	b.add("<section aria-labelledby=\"errors\">\n<h2 id=\"errors\">Errors</h2>\n<dl>\n")
	for _, r := range d.Components.Responses {
		b.add(`<div id="error-%[1]s"><dt><code>%[1]s</code>`, r.Name)
		for _, body := range r.Value.Content {
			b.add(" %s", typeOf(body.Value.Schema).html())
		}
		b.add("</dt><dd>%s", prose(r.Value.Description))
		for _, body := range r.Value.Content {
			b.add(`<pre tabindex="0">%s</pre>`, indent(body.Value.Example))
		}
		b.add("</dd></div>\n")
	}
	b.add("</dl>\n</section>\n<section aria-labelledby=\"schemas\">\n<h2 id=\"schemas\">Schemas</h2>\n")
	for _, s := range d.Components.Schemas {
		b.add("<article id=\"schema-%[1]s\">\n<h3><a href=\"#schema-%[1]s\">%[1]s</a></h3>\n%[2]s\n", s.Name, prose(s.Value.Description))
		if all := fields(s.Value); all != nil {
			b.fields(all)
		} else {
			b.add("<p>%s</p>\n", typeOf(s.Value).html())
		}
		b.add("</article>\n")
	}
	b.add("</section>\n</main>\n</body>\n</html>\n")
	return b.String()
}

func groupID(tag string) string { return "group-" + strings.ReplaceAll(tag, " ", "-") }

func (b *htmlBuilder) operation(o *operation) {
	b.add(`<article id="%[1]s" aria-labelledby="%[1]s-title">
<h3 id="%[1]s-title"><a href="#%[1]s">%[2]s</a></h3>
<p class="route"><code><b>%[3]s</b> %[4]s</code></p>
`, o.ID, o.Summary, o.method, o.path)
	if o.Description != "" {
		b.add("%s\n", prose(o.Description))
	}
	b.add("<p>Key: %s.</p>\n", keyOf(o))
	if o.Parameters != nil {
		b.add("<h4>Parameters</h4>\n")
		b.fields(o.Parameters)
	}
	for _, body := range o.RequestBody.Content {
		if of := typeOf(body.Value.Schema); of.Schema != "" {
			b.add("<h4>Body</h4><p>%s</p>\n", of.html())
		}
	}
	b.add("<h4>Example</h4>\n<pre class=\"curl\" tabindex=\"0\">%s</pre>\n<h4>Answers</h4>\n", curl(o))
	var shared []named[response] // with other operations
	for _, r := range o.Responses {
		if r.Value.Ref != "" {
			shared = append(shared, r)
			continue
		}
		b.add("<p><strong>%s</strong> %s.", r.Name, r.Value.Description)
		for _, body := range r.Value.Content {
			if body.Name == "application/json" {
				b.add(" %s", typeOf(body.Value.Schema).html())
			} else {
				b.add(" <code>%s</code>", body.Name)
			}
		}
		b.add("</p>\n")
		for _, body := range r.Value.Content {
			if body.Value.Example != nil {
				b.add("<pre tabindex=\"0\">%s</pre>\n", indent(body.Value.Example))
			}
		}
	}
	slices.SortFunc(shared, func(a, b named[response]) int { return strings.Compare(a.Name, b.Name) })
	b.add("<p>Errors: ")
	for i, e := range shared {
		if i > 0 {
			b.add(", ")
		}
		b.add(`<a href="#error-%s">%s</a>`, nameOf(e.Value.Ref), e.Name)
	}
	b.add(".</p>\n</article>\n")
}

// keyOf says who may send an operation.
func keyOf(o *operation) string {
	switch {
	case o.Security == nil:
		return "Your API key"
	case len(o.Security) == 0:
		return "None"
	}
	return "None, or a secret of the merchant"
}

// fields returns the fields of an object, and those of objects in it under their path.
func fields(s schema) []parameter {
	var all []parameter
	for _, p := range s.Properties {
		all = append(all, parameter{Name: p.Name, Required: slices.Contains(s.Required, p.Name), Schema: p.Value, Description: p.Value.Description})
		in, step := p.Value, "."
		if in.Items != nil {
			in, step = *in.Items, "[]."
		}
		for _, f := range fields(in) {
			f.Name = p.Name + step + f.Name
			all = append(all, f)
		}
	}
	return all
}

func (b *htmlBuilder) fields(fields []parameter) {
	b.add("<dl>\n")
	for _, f := range fields {
		b.add("<div><dt><code>%s</code>", f.Name)
		if f.In != "" {
			b.add(" <small>%s</small>", f.In)
		}
		if f.Required {
			b.add(` <small class="required">required</small>`)
		}
		b.add(" %s</dt>", typeOf(f.Schema).html())
		if f.Description != "" {
			b.add("<dd>%s</dd>", prose(f.Description))
		}
		b.add("</div>\n")
	}
	b.add("</dl>\n")
}

func (v typeView) html() markup {
	var b htmlBuilder
	b.add(`<span class="type">%s`, v.Before)
	if v.Schema != "" {
		if v.Before != "" {
			b.add(" ")
		}
		b.add(`<a href="#schema-%[1]s">%[1]s</a>`, v.Schema)
	}
	b.add("%s</span>", v.After)
	return markup(b.String())
}

// prose returns a description as HTML. An empty line separates paragraphs, and backticks enclose code.
func prose(text string) markup {
	var b htmlBuilder
	for paragraph := range strings.SplitSeq(strings.TrimSpace(text), "\n\n") {
		b.add("<p>")
		for i, part := range strings.Split(paragraph, "`") {
			if i%2 == 1 {
				b.add("<code>%s</code>", part)
			} else {
				b.add("%s", part)
			}
		}
		b.add("</p>")
	}
	return markup(b.String())
}

// indent returns an example on several lines.
func indent(example jsontext.Value) string {
	if example == nil {
		return ""
	}
	example = slices.Clone(example)
	_ = example.Indent(jsontext.WithIndent("  ")) // it fails only for what is no JSON, and leaves that as it is
	return string(example)
}
