package openapi

import (
	"fmt"
	"html"
	"strings"
)

// The page is written without html/template, because templates call methods by a name that the linker does not know: it would
// keep all exported methods of the program, which are megabytes. So all text goes through htmlBuilder.add, which escapes it.

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
func (v *pageView) html() string {
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
`, v.Info.Title, markup(style), v.Info.Title)
	for _, g := range v.Groups {
		b.add("<li><a href=\"#%s\">%s</a>\n<ul>", g.ID, g.Name)
		for _, o := range g.Operations {
			b.add(`<li><a href="#%s">%s</a></li>`, o.ID, o.Summary)
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
<p>Base host: `, v.Info.Summary, prose(v.Info.Description))
	for _, s := range v.Servers {
		b.add("<code>%s</code> ", s.URL)
	}
	b.add(`</p>
<p>The examples take your API key from a variable of the shell: <code>KEY=mtp_…</code></p>
<h2 id="keys">Keys</h2>
<dl>`)
	for _, s := range v.Components.SecuritySchemes {
		b.add("<div><dt><code>%s</code></dt><dd>%s</dd></div>", s.Name, prose(s.Value.Description))
	}
	b.add("</dl>\n")
	for _, g := range v.Groups {
		b.add("<section aria-labelledby=\"%[1]s\">\n<h2 id=\"%[1]s\">%[2]s</h2>\n%[3]s\n", g.ID, g.Name, prose(g.Description))
		for _, o := range g.Operations {
			b.operation(o)
		}
		b.add("</section>\n")
	}
	b.add("<section aria-labelledby=\"errors\">\n<h2 id=\"errors\">Errors</h2>\n<dl>\n")
	for _, e := range v.Errors {
		b.add(`<div id="error-%[1]s"><dt><code>%[1]s</code>`, e.Name)
		for _, body := range e.Bodies {
			b.add(" %s", body.Type.html())
		}
		b.add("</dt><dd>%s", prose(e.Description))
		for _, body := range e.Bodies {
			b.add(`<pre tabindex="0">%s</pre>`, body.Example)
		}
		b.add("</dd></div>\n")
	}
	b.add("</dl>\n</section>\n<section aria-labelledby=\"schemas\">\n<h2 id=\"schemas\">Schemas</h2>\n")
	for _, s := range v.Schemas {
		b.add("<article id=\"schema-%[1]s\">\n<h3><a href=\"#schema-%[1]s\">%[1]s</a></h3>\n%[2]s\n", s.Name, prose(s.Description))
		if s.Fields != nil {
			b.fields(s.Fields)
		} else {
			b.add("<p>%s</p>\n", s.Type.html())
		}
		b.add("</article>\n")
	}
	b.add("</section>\n</main>\n</body>\n</html>\n")
	return b.String()
}

func (b *htmlBuilder) operation(o operationView) {
	b.add(`<article id="%[1]s" aria-labelledby="%[1]s-title">
<h3 id="%[1]s-title"><a href="#%[1]s">%[2]s</a></h3>
<p class="route"><code><b>%[3]s</b> %[4]s</code></p>
`, o.ID, o.Summary, o.Method, o.Path)
	if o.Description != "" {
		b.add("%s\n", prose(o.Description))
	}
	b.add("<p>Key: %s.</p>\n", o.Key)
	if o.Parameters != nil {
		b.add("<h4>Parameters</h4>\n")
		b.fields(o.Parameters)
	}
	if o.Body.Schema != "" {
		b.add("<h4>Body</h4><p>%s</p>\n", o.Body.html())
	}
	b.add("<h4>Example</h4>\n<pre class=\"curl\" tabindex=\"0\">%s</pre>\n<h4>Answers</h4>\n", o.Curl)
	for _, a := range o.Answers {
		b.add("<p><strong>%s</strong> %s.", a.Name, a.Description)
		for _, body := range a.Bodies {
			if body.MediaType == "application/json" {
				b.add(" %s", body.Type.html())
			} else {
				b.add(" <code>%s</code>", body.MediaType)
			}
		}
		b.add("</p>\n")
		for _, body := range a.Bodies {
			if body.Example != "" {
				b.add("<pre tabindex=\"0\">%s</pre>\n", body.Example)
			}
		}
	}
	b.add("<p>Errors: ")
	for i, e := range o.Errors {
		if i > 0 {
			b.add(", ")
		}
		b.add(`<a href="#error-%s">%s</a>`, nameOf(e.Value.Ref), e.Name)
	}
	b.add(".</p>\n</article>\n")
}

func (b *htmlBuilder) fields(fields []fieldView) {
	b.add("<dl>\n")
	for _, f := range fields {
		b.add("<div><dt><code>%s</code>", f.Name)
		if f.In != "" {
			b.add(" <small>%s</small>", f.In)
		}
		if f.Required {
			b.add(` <small class="required">required</small>`)
		}
		b.add(" %s</dt>", f.Type.html())
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
