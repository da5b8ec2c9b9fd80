package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/alecthomas/kong"
)

// manualCommand is "mtagd man": make release runs it.
type manualCommand struct {
	Dir string `arg:"" help:"Existing directory for the pages."`
}

func (c *manualCommand) run(_ *process, parsed *kong.Context) error {
	var failed error
	walk(parsed.Model.Node, "", func(node *kong.Node, path string) {
		name := strings.ReplaceAll(strings.TrimSpace("mtagd "+path), " ", "-")
		if err := os.WriteFile(filepath.Join(c.Dir, name+".1"), []byte(manPage(name, path, node)), 0o644); err != nil && failed == nil {
			failed = err
		}
	})
	return failed
}

// walk visits a command and those below it, with the words that lead to each.
func walk(node *kong.Node, path string, visit func(node *kong.Node, path string)) {
	visit(node, path)
	for _, child := range node.Children {
		if !child.Hidden {
			walk(child, strings.TrimSpace(path+" "+child.Name), visit)
		}
	}
}

// manPage returns the page of a command, in the man macros.
func manPage(name, path string, node *kong.Node) string {
	var page strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&page, format+"\n", args...) }
	line(`.TH %s 1 "" "mtagd %s"`, strings.ToUpper(name), roff(version()))
	line(".SH NAME\n%s \\- %s", roff(name), roff(strings.TrimSuffix(firstLine(node.Help), ".")))
	line(".SH SYNOPSIS\n%s", roff(strings.TrimSpace("mtagd "+path+" "+node.FlagSummary(true)+summaries(node))))
	line(".SH DESCRIPTION\n%s", roff(strings.ReplaceAll(node.Help, "\n\n", "\n")))
	if node.Detail != "" {
		line(".PP\n%s", roff(node.Detail))
	}
	var commands []*kong.Node
	for _, child := range node.Children {
		if !child.Hidden {
			commands = append(commands, child)
		}
	}
	if len(commands) > 0 {
		line(".SH COMMANDS")
	}
	for _, child := range commands {
		line(".TP\n\\fB%s\\fR\n%s See %s(1).", roff(child.Name), roff(child.Help), roff(name+"-"+child.Name))
	}
	line(".SH OPTIONS")
	for _, flags := range node.AllFlags(true) {
		for _, flag := range flags {
			value := ""
			if !flag.IsBool() {
				value = " \\fI" + roff(flag.FormatPlaceHolder()) + "\\fR"
			}
			line(".TP\n\\fB\\-\\-%s\\fR%s\n%s", roff(flag.Name), value, roff(helpWithVariable(flag.Value)))
		}
	}
	line(".SH EXIT STATUS\n0: done. 1: failed. 2: the command line or the configuration is wrong.")
	if path != "" {
		line(".SH SEE ALSO\nmtagd(1)")
	}
	return page.String()
}

func summaries(node *kong.Node) string {
	var words strings.Builder
	for _, p := range node.Positional {
		words.WriteString(" " + p.Summary())
	}
	return words.String()
}

func firstLine(s string) string {
	line, _, _ := strings.Cut(s, "\n")
	return line
}

// roff returns a text in which roff finds no commands.
func roff(s string) string {
	s = strings.NewReplacer(`\`, `\e`, "-", `\-`).Replace(s)
	if strings.HasPrefix(s, ".") || strings.HasPrefix(s, "'") {
		s = `\&` + s
	}
	return strings.ReplaceAll(s, "\n", "\n.PP\n")
}
