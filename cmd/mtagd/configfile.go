package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"reflect"
	"strings"

	"github.com/alecthomas/kong"
	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
)

// configFile contains the values of a config file, by flag name.
type configFile map[string]configValue

type configValue struct {
	text string // as on the command line; lists are joined by commas
	line string // file:line
}

// flagsByName collects the flags of all commands, because all of them may share one config file.
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

// readConfigFile reads a YAML file with one mapping from flag names to values. JSON is YAML, too. An error names the
// file and the line.
func readConfigFile(name string, flags map[string]*kong.Flag) (configFile, error) {
	content, err := os.ReadFile(name)
	if errors.Is(err, fs.ErrPermission) {
		err = fmt.Errorf("%w: run mtagd as root, or as the user of the service", err)
	}
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

// configText converts a value of the file to the form that the flag has on the command line.
func configText(node ast.Node, flag *kong.Flag) (string, error) {
	kind := flag.Target.Kind()
	switch node := node.(type) {
	case *ast.SequenceNode:
		var parts []string
		for _, item := range node.Values {
			if text, ok := item.(*ast.StringNode); ok {
				parts = append(parts, text.Value)
			}
		}
		if flag.IsSlice() && len(parts) == len(node.Values) {
			return strings.Join(parts, ","), nil
		}
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
	switch kind {
	case reflect.Slice:
		return "", errors.New("must be a list of strings")
	case reflect.Bool:
		return "", errors.New("must be true or false")
	case reflect.Int:
		return "", errors.New("must be a whole number")
	default:
		return "", errors.New("must be a string")
	}
}

// Validate does nothing, because readConfigFile has checked every key. The parser requires it of a resolver.
func (configFile) Validate(*kong.Application) error { return nil }

// Resolve returns the flag's value from the file, unless the flag's environment variable is set. The parser asks only
// for flags that are not on the command line.
func (f configFile) Resolve(_ *kong.Context, _ *kong.Path, flag *kong.Flag) (any, error) {
	value, ok := f[flag.Name]
	if !ok || envOf(flag) != "" {
		return nil, nil
	}
	return value.text, nil
}

// envOf returns the name of the flag's environment variable if it is set, else "".
func envOf(flag *kong.Flag) string {
	for _, env := range flag.Envs {
		if _, set := os.LookupEnv(env); set {
			return env
		}
	}
	return ""
}

// origin says for each flag where its value comes from, in the form for error messages. Flags that were not set are
// not in it.
type origin map[string]string

// originOf finds the origin of each value. Precedence: command line, environment, config file.
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

// of returns how error messages name the flag: by the place where its value comes from.
func (o origin) of(flag string) string {
	if where := o[flag]; where != "" {
		return where
	}
	return "--" + flag
}

// given reports whether the flag was set anywhere, even if to its default value.
func (o origin) given(flag string) bool { return o[flag] != "" }
