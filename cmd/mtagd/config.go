package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"net"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/alecthomas/kong"
	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"

	"mtagd/store"
	"mtagd/store/local/backup"
)

// configFile contains the values of a config file, by flag name.
type configFile map[string]configValue

type configValue struct {
	text string // as on the command line; lists are joined by commas
	line string // file:line
}

// allFlags returns the flags of a command and of its subcommands by name. All commands may share one config file.
func allFlags(node *kong.Node) map[string]*kong.Flag {
	flags := map[string]*kong.Flag{}
	for _, flag := range node.Flags {
		flags[flag.Name] = flag
	}
	for _, child := range node.Children {
		maps.Copy(flags, allFlags(child))
	}
	return flags
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
			if flag == nil || flag.Name == "help" || flag.Name == "config" {
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

// origin says for each flag where its value comes from, as error messages name it. It has only flags that were set.
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
	return cmp.Or(o[flag], "--"+flag)
}

// given reports whether the flag was set anywhere, even if to its default value.
func (o origin) given(flag string) bool { return o[flag] != "" }

// unsetEmpty makes an empty MTAGD_ variable the same as an absent one, so that unit files may leave one blank.
func unsetEmpty(environ []string) error {
	for _, entry := range environ {
		if name, value, _ := strings.Cut(entry, "="); strings.HasPrefix(name, "MTAGD_") && value == "" {
			if err := os.Unsetenv(name); err != nil {
				return err
			}
		}
	}
	return nil
}

// checkVariables refuses MTAGD_ variables that belong to no flag of any command: they are probably misspelt.
func checkVariables(environ []string, root *kong.Node) error {
	var known []string
	for _, flag := range allFlags(root) {
		known = append(known, flag.Envs...)
	}
	var errs []error
	for _, entry := range environ {
		name, _, _ := strings.Cut(entry, "=")
		if !strings.HasPrefix(name, "MTAGD_") || slices.Contains(known, name) || linkVariable.MatchString(entry) {
			continue
		}
		errs = append(errs, &usageError{where: name, err: errors.New("no flag has this variable: the --help of each command lists its variables")})
	}
	return errors.Join(errs...)
}

// linkVariable matches the variables that Kubernetes sets in each pod for a service whose name begins with mtagd, and
// those that Docker sets for a link to such a container: after ENV_ they have the container's own environment.
var linkVariable = regexp.MustCompile(`^MTAGD_(\w+_)?(SERVICE_HOST=|SERVICE_PORT(_\w+)?=|PORT=\w+://|PORT_\d+_(TCP|UDP|SCTP)(_\w+)?=|NAME=/\S+/\S+$|ENV_\w+=)`)

// config configures the service, for serve and dev.
type config struct {
	serveCommand         // already checked
	Data, Store   string // as in process
	AdminOptional bool   // run without admin pages if their address is taken
	Log           *slog.Logger

	// Sockets are the listening sockets that stay open when the service goes on with a database; nil at the start.
	Sockets map[string]net.Listener

	// Aliases are other names of the base host. Only development mode has any.
	Aliases []string

	// Dev receives the text that development mode prints at its start; nil in production.
	Dev io.Writer
}

// claimable says which domains partners can claim. In development mode, names such as shop.test are among them.
func (c config) claimable() store.Claimable {
	return store.Claimable{
		Reserved:     []string{c.BaseHost, c.ClientTagHost, c.CNAMETarget},
		AllowPrivate: c.DNSAllowPrivate || c.Dev != nil,
	}
}

// backupConfig is the schedule of backups.
type backupConfig struct {
	To           backup.Destination
	Every        time.Duration
	Keep         time.Duration // 0: for ever
	Recipients   []string
	Certificates bool
}
