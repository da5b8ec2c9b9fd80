package main

import (
	"bytes"
	"cmp"
	"embed"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
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

func (c *completionCommand) Run(p *process) error {
	script, err := completions.ReadFile("completion/" + c.Shell)
	if err != nil {
		return err
	}
	_, err = p.stdout.Write(script)
	return err
}

//go:embed completion
var completions embed.FS

// suggestCommand is "mtagd suggest": it prints the possible next words, each with a tab and its help.
type suggestCommand struct {
	Words []string `arg:"" optional:"" help:"The words so far."`
}

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
	_, err := io.WriteString(p.stdout, text.String())
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

func (c *manualCommand) Run(p *process) error {
	return c.write(p.parsed.Kong, p.parsed.Model.Node, nil)
}

// write writes the pages of a command and of its subcommands: the text of --help, with the headings of a manual. words are
// the command's words on the command line.
func (c *manualCommand) write(parser *kong.Kong, node *kong.Node, words []string) error {
	command, err := kong.Trace(parser, words)
	if err != nil {
		return err
	}
	var help bytes.Buffer
	parser.Stdout = &help
	if err := kong.DefaultHelpPrinter(kong.HelpOptions{Compact: true, WrapUpperBound: 72, ValueFormatter: helpWithVariable}, command); err != nil { // of 80 columns, man needs 7
		return err
	}
	name := strings.Join(append([]string{"mtagd"}, words...), "-")
	text := controlLine.ReplaceAllString(roff.Replace(help.String()), `\&$0`)
	page := fmt.Sprintf(".TH %s 1 \"\" \"mtagd %s\"\n.SH NAME\n%s \\- %s\n.SH DESCRIPTION\n.nf\n%s\n.fi\n"+
		".SH EXIT STATUS\n0: done. 1: failed. 2: the command line or the configuration is wrong.\n",
		strings.ToUpper(name), roff.Replace(version()), roff.Replace(name), roff.Replace(firstSentence(strings.ReplaceAll(node.Help, "\n", " "))),
		heading.ReplaceAllStringFunc(text, func(h string) string { return ".fi\n.SH " + strings.ToUpper(h[:len(h)-1]) + "\n.nf" }))
	err = os.WriteFile(filepath.Join(c.Dir, name+".1"), []byte(page), 0o644)
	for _, child := range shown(node) {
		err = cmp.Or(err, c.write(parser, child, append(slices.Clone(words), child.Name)))
	}
	return err
}

var (
	roff        = strings.NewReplacer(`\`, `\e`, "-", `\-`)
	controlLine = regexp.MustCompile(`(?m)^[.']`)          // roff would take it for a command
	heading     = regexp.MustCompile(`(?m)^[A-Z][a-z]+:$`) // of --help
)

// shown returns the subcommands of a command that are not hidden.
func shown(node *kong.Node) []*kong.Node {
	return slices.DeleteFunc(slices.Clone(node.Children), func(child *kong.Node) bool { return child.Hidden })
}
