package main

import (
	"fmt"
	"strings"

	"github.com/alecthomas/kong"
)

// completionCommand is "mtagd completion". The scripts contain all commands and flags, so that a shell need not run mtagd.
type completionCommand struct {
	Shell string `arg:"" help:"bash, zsh or fish."`
}

func (*completionCommand) Help() string {
	return "bash: mtagd completion bash >/etc/bash_completion.d/mtagd. zsh: mtagd completion zsh >/usr/local/share/zsh/site-functions/_mtagd. " +
		"fish: mtagd completion fish >~/.config/fish/completions/mtagd.fish. The packages have all three."
}

func (c *completionCommand) run(p *process, parsed *kong.Context) error {
	if err := oneOf(c.Shell, "bash", "zsh", "fish"); err != nil {
		return &usageError{where: "SHELL", err: err}
	}
	var script strings.Builder
	known := strings.Builder{} // the paths of commands
	walk(parsed.Model.Node, "", func(node *kong.Node, path string) {
		if path != "" {
			fmt.Fprintf(&known, "'%s'|", path)
		}
		switch c.Shell {
		case "bash":
			var words []string
			suggestions(node, func(word, _ string) { words = append(words, word) })
			fmt.Fprintf(&script, "    '%s') words='%s' ;;\n", path, strings.Join(words, " "))
		case "zsh":
			fmt.Fprintf(&script, "    '%s') answers=(", path)
			suggestions(node, func(word, help string) { fmt.Fprintf(&script, " %s", quoted(word+":"+help)) })
			script.WriteString(" ) ;;\n")
		case "fish":
			suggestions(node, func(word, help string) {
				option := "-f -a " + word
				if long, ok := strings.CutPrefix(word, "--"); ok {
					option = "-l " + long
				}
				fmt.Fprintf(&script, "complete -c mtagd -n 'test (__mtagd_path) = \"%s\"' %s -d %s\n", path, option, quoted(help))
			})
		}
	})
	text := map[string]string{"bash": bashCompletion, "zsh": zshCompletion, "fish": fishCompletion}[c.Shell]
	paths := strings.TrimSuffix(known.String(), "|")
	if c.Shell == "fish" {
		paths = strings.ReplaceAll(paths, "|", " ")
	}
	_, err := fmt.Fprintf(p.stdout, text, paths, script.String())
	return err
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

// suggestions lists the words that may follow a command, with their help.
func suggestions(node *kong.Node, add func(word, help string)) {
	for _, child := range node.Children {
		if !child.Hidden {
			add(child.Name, firstSentence(child.Help))
		}
	}
	for _, flags := range node.AllFlags(true) {
		for _, flag := range flags {
			add("--"+flag.Name, firstSentence(flag.Help))
		}
	}
}

func firstSentence(help string) string {
	sentence, _, _ := strings.Cut(help, ". ")
	return strings.TrimSuffix(sentence, ".")
}

// quoted returns a word for a shell, in single quotes.
func quoted(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

// In each script, the first %[1]s is the list of all commands, %[2]s what may follow each.
const bashCompletion = `# bash completion of mtagd, made by "mtagd completion bash"
_mtagd() {
  local cur=${COMP_WORDS[COMP_CWORD]} path= next word words
  for word in "${COMP_WORDS[@]:1:COMP_CWORD-1}"; do
    next="$path${path:+ }$word"
    case $next in %[1]s) path=$next ;; esac
  done
  case $path in
%[2]s  esac
  COMPREPLY=($(compgen -W "$words" -- "$cur"))
}
complete -o default -F _mtagd mtagd
`

const zshCompletion = `#compdef mtagd
# zsh completion of mtagd, made by "mtagd completion zsh"
_mtagd() {
  local found= next word
  for word in "${(@)words[2,CURRENT-1]}"; do
    next="$found${found:+ }$word"
    case $next in %[1]s) found=$next ;; esac
  done
  local -a answers
  case $found in
%[2]s  esac
  _describe mtagd answers || _files
}
if [ "$funcstack[1]" = _mtagd ]; then _mtagd "$@"; else compdef _mtagd mtagd; fi
`

const fishCompletion = `# fish completion of mtagd, made by "mtagd completion fish"
function __mtagd_path
  set -l found ''
  for word in (commandline -opc)[2..-1]
    set -l next (string trim "$found $word")
    if contains -- $next %[1]s
      set found $next
    end
  end
  echo $found
end
%[2]s`
