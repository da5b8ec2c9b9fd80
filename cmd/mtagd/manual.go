package main

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/alecthomas/kong"

	"mtagd/store/local"
	"mtagd/store/local/backup"
	"mtagd/store/postgres/schema"
)

// release and commit are set by make release, whose builds do not depend on the state of a repository.
var release, commit string

// version returns the version of the program. The go command derives it from the tag or commit that it builds.
func version() string {
	if release != "" {
		return release
	}
	if info, ok := debug.ReadBuildInfo(); ok {
		return info.Main.Version
	}
	return "unknown"
}

// revision returns the commit that the program was built from.
func revision() string {
	if info, ok := debug.ReadBuildInfo(); ok && commit == "" {
		for _, setting := range info.Settings {
			if setting.Key == "vcs.revision" {
				return setting.Value
			}
		}
	}
	return cmp.Or(commit, "unknown")
}

type versionCommand struct{}

// Run prints the version, and the formats of data that it reads.
func (versionCommand) Run(p *process) error {
	_, err := fmt.Fprintf(p.stdout, "mtagd %s\ncommit %s\n%s %s/%s\ndata directory: %s\nbackups: format %d and older\nPostgreSQL: schema %d and older\n",
		version(), revision(), runtime.Version(), runtime.GOOS, runtime.GOARCH, local.Formats, backup.Format, schema.Version)
	return err
}

// completionCommand is "mtagd completion". The scripts call "mtagd suggest" for the possible next words.
type completionCommand struct {
	Shell string `arg:"" enum:"bash,zsh,fish" help:"bash, zsh or fish."`
}

func (*completionCommand) Help() string {
	return "bash: mtagd completion bash >/etc/bash_completion.d/mtagd. zsh: mtagd completion zsh >/usr/local/share/zsh/site-functions/_mtagd. " +
		"fish: mtagd completion fish >~/.config/fish/completions/mtagd.fish. The packages have all three."
}

// Run prints a script.
func (c *completionCommand) Run(p *process) error {
	_, err := fmt.Fprint(p.stdout, completions[c.Shell])
	return err
}

var completions = map[string]string{
	"bash": `# bash completion of mtagd, made by "mtagd completion bash"
_mtagd() {
  COMPREPLY=($(compgen -W "$(mtagd suggest -- "${COMP_WORDS[@]:1:COMP_CWORD-1}" 2>/dev/null | cut -f 1)" -- "${COMP_WORDS[COMP_CWORD]}"))
}
complete -o default -F _mtagd mtagd
`,
	"zsh": `#compdef mtagd
# zsh completion of mtagd, made by "mtagd completion zsh"
_mtagd() {
  local -a answers
  answers=("${(@f)$(mtagd suggest -- "${(@)words[2,CURRENT-1]}" 2>/dev/null | tr '\t' :)}")
  _describe mtagd answers || _files
}
if [ "$funcstack[1]" = _mtagd ]; then _mtagd "$@"; else compdef _mtagd mtagd; fi
`,
	"fish": `# fish completion of mtagd, made by "mtagd completion fish"
complete -c mtagd -f -a '(mtagd suggest -- (commandline -opc)[2..-1] 2>/dev/null)'
`,
}

// suggestCommand is "mtagd suggest": it prints the possible next words, each with a tab and its help.
type suggestCommand struct {
	Words []string `arg:"" optional:"" help:"The words so far."`
}

// Run prints the possible next words.
func (c *suggestCommand) Run(p *process) error {
	node := p.parsed.Model.Node
	for _, word := range c.Words {
		children := shown(node)
		if i := slices.IndexFunc(children, func(child *kong.Node) bool { return child.Name == word }); i >= 0 {
			node = children[i]
		}
	}
	var text strings.Builder
	for _, child := range shown(node) {
		fmt.Fprintf(&text, "%s\t%s\n", child.Name, firstSentence(child.Help))
	}
	for _, flags := range node.AllFlags(true) {
		for _, flag := range flags {
			fmt.Fprintf(&text, "--%s\t%s\n", flag.Name, firstSentence(flag.Help))
		}
	}
	_, err := fmt.Fprint(p.stdout, text.String())
	return err
}

func firstSentence(help string) string {
	sentence, _, _ := strings.Cut(help, ". ")
	return strings.TrimSuffix(sentence, ".")
}

// manualCommand is "mtagd man": make release runs it.
type manualCommand struct {
	Dir string `arg:"" help:"Existing directory for the pages."`
}

// Run writes the manual pages.
func (c *manualCommand) Run(p *process) error { return c.write(p.parsed.Model.Node, "mtagd") }

// write writes the pages of a command and of its subcommands. path is the words that call the command.
func (c *manualCommand) write(node *kong.Node, path string) error {
	name := strings.ReplaceAll(path, " ", "-")
	err := os.WriteFile(filepath.Join(c.Dir, name+".1"), []byte(manPage(name, path, node)), 0o644)
	for _, child := range shown(node) {
		err = cmp.Or(err, c.write(child, path+" "+child.Name))
	}
	return err
}

// shown returns the subcommands of a command that are not hidden.
func shown(node *kong.Node) []*kong.Node {
	return slices.DeleteFunc(slices.Clone(node.Children), func(child *kong.Node) bool { return child.Hidden })
}

// manPage returns the page of a command, in the man macros.
func manPage(name, path string, node *kong.Node) string {
	var page strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&page, format+"\n", args...) }
	line(`.TH %s 1 "" "mtagd %s"`, strings.ToUpper(name), roff(version()))
	line(".SH NAME\n%s \\- %s", roff(name), roff(strings.TrimSuffix(firstLine(node.Help), ".")))
	line(".SH SYNOPSIS\n%s", roff(path+" "+node.FlagSummary(true)+summaries(node)))
	line(".SH DESCRIPTION\n%s", roff(strings.ReplaceAll(node.Help, "\n\n", "\n")))
	if node.Detail != "" {
		line(".PP\n%s", roff(node.Detail))
	}
	commands := shown(node)
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
	if name != "mtagd" {
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
