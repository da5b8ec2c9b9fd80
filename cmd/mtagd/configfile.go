package main

import (
	"errors"
	"fmt"
	"os"
	"reflect"
	"strings"

	"github.com/alecthomas/kong"
	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
)

// configFile is what a config file says: a value for each flag it names.
type configFile map[string]configValue

type configValue struct {
	text string // as the flag takes it; a list is joined by commas
	line string // file:line
}

// flagsByName collects the flags of every command, because one file may serve them all.
func flagsByName(root *kong.Node) map[string]*kong.Flag {
	flags := map[string]*kong.Flag{}
	collectFlags(root, flags)
	delete(flags, "help")
	delete(flags, "config")
	return flags
}

func collectFlags(node *kong.Node, flags map[string]*kong.Flag) {
	for _, flag := range node.Flags {
		flags[flag.Name] = flag
	}
	for _, child := range node.Children {
		collectFlags(child, flags)
	}
}

// readConfigFile reads a YAML file, which may be a JSON file, of one mapping from flag names to values. An
// error names the file and, within it, the line.
func readConfigFile(name string, flags map[string]*kong.Flag) (configFile, error) {
	content, err := os.ReadFile(name)
	if err != nil {
		return nil, fmt.Errorf("--config: %w", err)
	}
	file, err := parser.ParseBytes(content, 0)
	if err != nil {
		if syntax, ok := errors.AsType[yaml.Error](err); ok && syntax.GetToken() != nil {
			return nil, fmt.Errorf("%s:%d: %s", name, syntax.GetToken().Position.Line, syntax.GetMessage())
		}
		return nil, fmt.Errorf("%s: %w", name, err)
	}

	values := configFile{}
	for i, doc := range file.Docs {
		if doc.Body == nil {
			continue
		}
		mapping, ok := doc.Body.(*ast.MappingNode)
		if i > 0 || !ok {
			return nil, fmt.Errorf("%s:%d: must be one list of \"flag: value\" lines", name, doc.Body.GetToken().Position.Line)
		}
		for _, entry := range mapping.Values {
			key := entry.Key.GetToken()
			line := fmt.Sprintf("%s:%d", name, key.Position.Line)
			flag := flags[key.Value]
			if flag == nil {
				return nil, fmt.Errorf("%s: unknown key %q", line, key.Value)
			}
			text, err := configText(entry.Value, flag)
			if err != nil {
				return nil, fmt.Errorf("%s: %s: %w", line, key.Value, err)
			}
			values[key.Value] = configValue{text, line}
		}
	}
	return values, nil
}

// configText is a value of the file in the form in which the flag takes it on the command line.
func configText(node ast.Node, flag *kong.Flag) (string, error) {
	if list, ok := node.(*ast.SequenceNode); ok && flag.IsSlice() {
		var parts []string
		for _, item := range list.Values {
			text, ok := item.(*ast.StringNode)
			if !ok {
				return "", errors.New("must be a list of strings")
			}
			parts = append(parts, text.Value)
		}
		return strings.Join(parts, ","), nil
	}

	switch kind := flag.Target.Kind(); node := node.(type) {
	case *ast.StringNode:
		if kind != reflect.Bool && kind != reflect.Int {
			return node.Value, nil
		}
	case *ast.LiteralNode:
		if kind == reflect.String {
			return strings.TrimSpace(node.Value.Value), nil
		}
	case *ast.IntegerNode:
		if kind == reflect.Int {
			return node.GetToken().Value, nil
		}
	case *ast.BoolNode:
		if kind == reflect.Bool {
			return fmt.Sprint(node.Value), nil
		}
	}

	switch {
	case flag.IsSlice():
		return "", errors.New("must be a list of strings")
	case flag.Target.Kind() == reflect.Bool:
		return "", errors.New("must be true or false")
	case flag.Target.Kind() == reflect.Int:
		return "", errors.New("must be a whole number")
	default:
		return "", errors.New("must be a string")
	}
}

// Validate has nothing left to do: every key was checked when the file was read.
func (configFile) Validate(*kong.Application) error { return nil }

// Resolve gives a flag's value to the parser, unless its environment variable, which goes first,
// is set. The command line goes before both.
func (f configFile) Resolve(_ *kong.Context, _ *kong.Path, flag *kong.Flag) (any, error) {
	value, ok := f[flag.Name]
	if !ok || envOf(flag) != "" {
		return nil, nil
	}
	return value.text, nil
}

// envOf is the name of a flag's environment variable when that is set.
func envOf(flag *kong.Flag) string {
	for _, env := range flag.Envs {
		if _, set := os.LookupEnv(env); set {
			return env
		}
	}
	return ""
}

// origin tells where each flag's value came from, in the words of an error message. A flag that
// has its default is not in it.
type origin map[string]string

// originOf follows the precedence: command line, environment, config file.
func originOf(ctx *kong.Context, file configFile) origin {
	from := origin{}
	for _, path := range ctx.Path {
		if path.Flag != nil && !path.Resolved {
			from[path.Flag.Name] = "--" + path.Flag.Name
		}
	}
	for _, flag := range ctx.Flags() {
		if from[flag.Name] != "" {
			continue
		}
		if env := envOf(flag); env != "" {
			from[flag.Name] = env
		} else if value, ok := file[flag.Name]; ok {
			from[flag.Name] = value.line + ": " + flag.Name
		}
	}
	return from
}

// of is what to call a flag's value in an error message.
func (o origin) of(flag string) string {
	if where := o[flag]; where != "" {
		return where
	}
	return "--" + flag
}

// given reports whether a flag has another value than its default.
func (o origin) given(flag string) bool { return o[flag] != "" }
