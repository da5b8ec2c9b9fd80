package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/alecthomas/kong"
)

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

func (c *suggestCommand) run(p *process, parsed *kong.Context) error {
	node := parsed.Model.Node
	for _, word := range c.Words {
		if i := slices.IndexFunc(node.Children, func(child *kong.Node) bool { return child.Name == word && !child.Hidden }); i >= 0 {
			node = node.Children[i]
		}
	}
	var text strings.Builder
	for _, child := range node.Children {
		if !child.Hidden {
			fmt.Fprintf(&text, "%s\t%s\n", child.Name, firstSentence(child.Help))
		}
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
