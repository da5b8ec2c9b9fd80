package openapi

import (
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"fmt"
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
	view, err := d.view()
	if err != nil {
		return nil, "", err
	}
	sum := sha256.Sum256([]byte(style))
	policy = "default-src 'none'; style-src 'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) +
		"'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
	return []byte(view.html()), policy, nil
}

// pageView is what the page shows.
type pageView struct {
	*document
	Groups  []groupView
	Errors  []answerView // those that several operations have
	Schemas []schemaView
}

type groupView struct {
	ID, Name, Description string
	Operations            []operationView
}

type operationView struct {
	ID, Method, Path, Summary, Description string
	Key                                    string // who may send it
	Parameters                             []fieldView
	Body                                   typeView
	Curl                                   string
	Answers                                []answerView
	Errors                                 []named[response] // what it shares with others
}

type answerView struct {
	Name, Description string // Name is the status, or the name of a component
	Bodies            []bodyView
}

type bodyView struct {
	MediaType string
	Type      typeView
	Example   string
}

type schemaView struct {
	Name, Description string
	Fields            []fieldView
	Type              typeView // when it is no object
}

// fieldView is a parameter, or a field of a body.
type fieldView struct {
	Name, In    string // In is empty for a field of a body
	Required    bool
	Type        typeView
	Description string
}

func (d *document) view() (*pageView, error) {
	v := &pageView{document: d}
	for _, tag := range d.Tags {
		group := groupView{ID: "group-" + strings.ReplaceAll(tag.Name, " ", "-"), Name: tag.Name, Description: tag.Description}
		for _, path := range d.Paths {
			item := path.Value
			for _, o := range []named[*operation]{{"GET", item.Get}, {"POST", item.Post}, {"PUT", item.Put}, {"PATCH", item.Patch}, {"DELETE", item.Delete}} {
				if o.Value == nil || !slices.Contains(o.Value.Tags, tag.Name) {
					continue
				}
				shown, err := d.operation(o.Name, path.Name, item, o.Value)
				if err != nil {
					return nil, fmt.Errorf("%s %s: %w", o.Name, path.Name, err)
				}
				group.Operations = append(group.Operations, shown)
			}
		}
		v.Groups = append(v.Groups, group)
	}
	for _, r := range d.Components.Responses {
		answer, err := answerOf(r)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", r.Name, err)
		}
		v.Errors = append(v.Errors, answer)
	}
	for _, s := range d.Components.Schemas {
		v.Schemas = append(v.Schemas, schemaView{s.Name, s.Value.Description, fields(s.Value), typeOf(s.Value)})
	}
	return v, nil
}

func (d *document) operation(method, path string, item pathItem, o *operation) (operationView, error) {
	v := operationView{ID: o.ID, Method: method, Path: path, Summary: o.Summary, Description: o.Description, Key: keyOf(o)}
	parameters := d.parameters(item, o)
	for _, p := range parameters {
		v.Parameters = append(v.Parameters, fieldView{p.Name, p.In, p.Required, typeOf(p.Schema), p.Description})
	}
	var body jsontext.Value
	for _, c := range o.RequestBody.Content {
		body = c.Value.Example
		v.Body = typeOf(c.Value.Schema)
	}
	servers := d.Servers
	if item.Servers != nil {
		servers = item.Servers
	}
	v.Curl = curl(servers[0].address(), method, path, parameters, body, o.Security == nil)
	for _, r := range o.Responses {
		if r.Value.Ref != "" {
			v.Errors = append(v.Errors, named[response]{r.Name, r.Value})
			continue
		}
		answer, err := answerOf(r)
		if err != nil {
			return v, err
		}
		v.Answers = append(v.Answers, answer)
	}
	slices.SortFunc(v.Errors, func(a, b named[response]) int { return strings.Compare(a.Name, b.Name) })
	return v, nil
}

func answerOf(r named[response]) (answerView, error) {
	v := answerView{Name: r.Name, Description: r.Value.Description}
	for _, c := range r.Value.Content {
		example, err := indent(c.Value.Example)
		if err != nil {
			return v, err
		}
		v.Bodies = append(v.Bodies, bodyView{c.Name, typeOf(c.Value.Schema), example})
	}
	return v, nil
}

// parameters returns the parameters of an operation, and those of its path.
func (d *document) parameters(item pathItem, o *operation) []parameter {
	all := slices.Concat(item.Parameters, o.Parameters)
	for i, p := range all {
		if p.Ref != "" {
			all[i] = d.Components.Parameters.get(p.Ref)
		}
	}
	return all
}

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
func fields(s schema) []fieldView {
	var all []fieldView
	for _, p := range s.Properties {
		all = append(all, fieldView{p.Name, "", slices.Contains(s.Required, p.Name), typeOf(p.Value), p.Value.Description})
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

func indent(example jsontext.Value) (string, error) {
	if example == nil {
		return "", nil
	}
	err := example.Indent(jsontext.WithIndent("  "))
	return string(example), err
}
