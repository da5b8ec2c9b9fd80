// Package filter decides by an expression whether an event is delivered. The expressions are a part of the Common Expression
// Language (CEL, https://github.com/google/cel-spec): literals, fields, ! && || == != < <= > >= in, + on texts and numbers,
// lists, has(), size(), and on texts contains(), startsWith(), endsWith() and lowerAscii(). They have no loops, no functions
// that take long, and bounded length, so each evaluation ends within microseconds.
//
// As in CEL, an error on one side of && or || is ignored if the other side decides. Any other error, such as a field that
// the event does not have, makes the whole expression false: an event that cannot be judged is not delivered.
package filter

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"text/scanner"
	"unicode/utf8"
)

// Limits of an expression.
const (
	maxLength = 2000 // bytes
	maxDepth  = 50
)

// Filter is an expression. It may be used by many goroutines.
type Filter struct{ root node }

// node is a part of an expression.
type node func(fields map[string]any) (any, error)

// Matches evaluates the filter on the fields of an event. A nil filter matches all.
func (f *Filter) Matches(fields map[string]any) bool {
	if f == nil {
		return true
	}
	v, err := f.root(fields)
	return err == nil && v == true
}

// Compile reads an expression. Its error says where it is wrong.
func Compile(text string) (*Filter, error) {
	if len(text) > maxLength {
		return nil, fmt.Errorf("must have at most %d bytes", maxLength)
	}
	p := &parser{}
	p.s.Init(strings.NewReader(text))
	p.s.Mode = scanner.ScanIdents | scanner.ScanFloats | scanner.ScanStrings
	p.s.Error = func(_ *scanner.Scanner, msg string) { p.fail(msg) }
	p.s.IsIdentRune = func(r rune, i int) bool {
		return r == '_' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || i > 0 && r >= '0' && r <= '9'
	}
	p.next()
	root := p.expression()
	if p.tok != scanner.EOF {
		p.fail("unexpected " + p.text)
	}
	if p.err != nil {
		return nil, p.err
	}
	return &Filter{root}, nil
}

var errNoValue = errors.New("no such value")

type parser struct {
	s     scanner.Scanner
	tok   rune
	text  string
	depth int
	err   error
}

func (p *parser) fail(msg string) {
	if p.err == nil {
		p.err = fmt.Errorf("%s at column %d", msg, max(p.s.Position.Column, 1))
	}
	p.tok = scanner.EOF
}

// next reads a token; single quotes are read as double ones.
func (p *parser) next() {
	if p.err != nil {
		p.tok = scanner.EOF
		return
	}
	p.tok = p.s.Scan()
	p.text = p.s.TokenText()
	switch p.tok {
	case '\'':
		p.quoted()
	case '&', '|', '=', '!', '<', '>':
		if next := p.s.Peek(); next == '=' || next == p.tok && (p.tok == '&' || p.tok == '|') {
			p.s.Next()
			p.text += string(next)
		}
	}
}

func (p *parser) quoted() {
	var b strings.Builder
	for {
		c := p.s.Next()
		switch c {
		case scanner.EOF, '\n':
			p.fail("a text without an end")
			return
		case '\'':
			p.tok, p.text = scanner.String, strconv.Quote(b.String())
			return
		case '\\':
			c = p.s.Next()
		}
		b.WriteRune(c)
	}
}

func (p *parser) accept(text string) bool {
	if p.tok == scanner.EOF || p.tok == scanner.String || p.text != text {
		return false
	}
	p.next()
	return true
}

func (p *parser) expect(text string) {
	if !p.accept(text) {
		p.fail("expected " + text)
	}
}

// operators have two sides; each line binds more strongly than the one before. Comparisons have no order among them: a == b
// == c is an error.
var operators = [][]string{
	{"||"},
	{"&&"},
	{"==", "!=", "<=", ">=", "<", ">", "in"},
	{"+"},
}

const comparisons = 2

func (p *parser) expression() node { return p.binary(0) }

// binary reads the operators of a line and of those below it.
func (p *parser) binary(line int) node {
	if line == len(operators) {
		return p.unary()
	}
	left := p.binary(line + 1)
	for {
		i := slices.IndexFunc(operators[line], p.accept)
		if i < 0 {
			return left
		}
		op, right := operators[line][i], p.binary(line+1)
		switch op {
		case "||", "&&":
			left = logical(left, right, op == "||")
		default:
			left = both(left, right, func(l, r any) (any, error) { return combine(op, l, r) })
		}
		if line == comparisons {
			return left
		}
	}
}

// logical is || or &&: one side decides if it is deciding.
func logical(left, right node, deciding bool) node {
	return func(f map[string]any) (any, error) {
		l, lErr := left(f)
		if lErr == nil && l == deciding {
			return deciding, nil
		}
		r, rErr := right(f)
		switch {
		case rErr == nil && r == deciding:
			return deciding, nil
		case lErr != nil || rErr != nil || l != !deciding || r != !deciding:
			return nil, errNoValue
		}
		return !deciding, nil
	}
}

// both returns a node that combines the values of two others.
func both(left, right node, of func(l, r any) (any, error)) node {
	return func(f map[string]any) (any, error) {
		l, err := left(f)
		if err != nil {
			return nil, err
		}
		r, err := right(f)
		if err != nil {
			return nil, err
		}
		return of(l, r)
	}
}

func combine(op string, l, r any) (any, error) {
	switch op {
	case "==":
		return equal(l, r), nil
	case "!=":
		return !equal(l, r), nil
	case "in":
		switch in := r.(type) {
		case []any:
			return slices.ContainsFunc(in, func(v any) bool { return equal(l, v) }), nil
		case map[string]any:
			key, ok := l.(string)
			_, has := in[key]
			return ok && has, nil
		}
		return nil, errNoValue
	}
	a, isNumber := number(l)
	b, areNumbers := number(r)
	s, isText := l.(string)
	t, areTexts := r.(string)
	order := 0
	switch {
	case isNumber && areNumbers:
		if op == "+" {
			return a + b, nil
		}
		order = cmp.Compare(a, b)
	case isText && areTexts:
		if op == "+" {
			return s + t, nil
		}
		order = cmp.Compare(s, t)
	default:
		return nil, errNoValue
	}
	switch op {
	case "<":
		return order < 0, nil
	case "<=":
		return order <= 0, nil
	case ">":
		return order > 0, nil
	}
	return order >= 0, nil
}

func equal(l, r any) bool {
	if a, ok := number(l); ok {
		b, ok := number(r)
		return ok && a == b
	}
	switch l.(type) {
	case string, bool, nil:
		return l == r
	}
	return false
}

func number(v any) (float64, bool) {
	switch v := v.(type) {
	case float64:
		return v, true
	case json.Number:
		f, err := v.Float64()
		return f, err == nil && !math.IsInf(f, 0)
	}
	return 0, false
}

// unary bounds the depth: each nested expression goes through it.
func (p *parser) unary() node {
	if p.depth++; p.depth > maxDepth {
		p.fail("nested too deeply")
		return nil
	}
	defer func() { p.depth-- }()
	switch {
	case p.accept("!"):
		of := p.unary()
		return func(f map[string]any) (any, error) {
			v, err := of(f)
			is, ok := v.(bool)
			if err != nil || !ok {
				return nil, errNoValue
			}
			return !is, nil
		}
	case p.accept("-"):
		of := p.unary()
		return func(f map[string]any) (any, error) {
			v, err := of(f)
			n, ok := number(v)
			if err != nil || !ok {
				return nil, errNoValue
			}
			return -n, nil
		}
	}
	return p.postfix(p.primary())
}

// postfix reads .field, ["field"] and .method(text) after a value.
func (p *parser) postfix(of node) node {
	for {
		switch {
		case p.accept("."):
			name := p.text
			if p.tok != scanner.Ident {
				p.fail("expected a name")
				return of
			}
			p.next()
			if p.accept("(") {
				of = p.method(of, name)
			} else {
				of = member(of, constant(name))
			}
		case p.accept("["):
			of = member(of, p.expression())
			p.expect("]")
		default:
			return of
		}
	}
}

func constant(v any) node { return func(map[string]any) (any, error) { return v, nil } }

func member(of, key node) node {
	return both(of, key, func(v, k any) (any, error) {
		switch in := v.(type) {
		case map[string]any:
			name, _ := k.(string)
			if field, ok := in[name]; ok {
				return field, nil
			}
		case []any:
			if i, ok := number(k); ok && i >= 0 && int(i) < len(in) && i == math.Trunc(i) {
				return in[int(i)], nil
			}
		}
		return nil, errNoValue
	})
}

var methods = map[string]func(s, arg string) any{
	"contains":   func(s, arg string) any { return strings.Contains(s, arg) },
	"startsWith": func(s, arg string) any { return strings.HasPrefix(s, arg) },
	"endsWith":   func(s, arg string) any { return strings.HasSuffix(s, arg) },
	"lowerAscii": func(s, _ string) any { return strings.ToLower(s) },
}

func (p *parser) method(of node, name string) node {
	call, ok := methods[name]
	if !ok {
		p.fail("unknown function " + name)
		return of
	}
	arg := constant("")
	if name != "lowerAscii" {
		arg = p.expression()
	}
	p.expect(")")
	return both(of, arg, func(v, a any) (any, error) {
		s, okS := v.(string)
		text, okA := a.(string)
		if !okS || !okA {
			return nil, errNoValue
		}
		return call(s, text), nil
	})
}

func (p *parser) primary() node {
	text := p.text
	switch p.tok {
	case scanner.String:
		s, err := strconv.Unquote(text)
		if err != nil || !utf8.ValidString(s) {
			p.fail("a text that cannot be read")
		}
		p.next()
		return constant(s)
	case scanner.Int, scanner.Float:
		n, err := strconv.ParseFloat(text, 64)
		if err != nil {
			p.fail("a number that cannot be read")
		}
		p.next()
		return constant(n)
	case scanner.Ident:
		p.next()
		switch text {
		case "true", "false":
			return constant(text == "true")
		case "null":
			return constant(nil)
		case "has", "size":
			if p.accept("(") {
				return p.function(text)
			}
		}
		return member(func(f map[string]any) (any, error) { return f, nil }, constant(text))
	}
	switch {
	case p.accept("("):
		of := p.expression()
		p.expect(")")
		return of
	case p.accept("["):
		return p.list()
	}
	p.fail("expected a value")
	return constant(nil)
}

// function is has(field), which is never an error, or size(value).
func (p *parser) function(name string) node {
	of := p.expression()
	p.expect(")")
	return func(f map[string]any) (any, error) {
		v, err := of(f)
		if name == "has" {
			return err == nil, nil
		}
		switch v := v.(type) {
		case string:
			return float64(utf8.RuneCountInString(v)), nil
		case []any:
			return float64(len(v)), nil
		case map[string]any:
			return float64(len(v)), nil
		}
		return nil, errNoValue
	}
}

func (p *parser) list() node {
	var items []node
	for p.err == nil && !p.accept("]") {
		if items = append(items, p.expression()); !p.accept(",") {
			p.expect("]")
			break
		}
	}
	return func(f map[string]any) (any, error) {
		list := make([]any, len(items))
		for i, item := range items {
			v, err := item(f)
			if err != nil {
				return nil, err
			}
			list[i] = v
		}
		return list, nil
	}
}
