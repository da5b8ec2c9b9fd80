package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"mtagd/store/testenv"
)

// Each shell completes commands and flags, and knows which command it is at.
func TestCompletion(t *testing.T) {
	for shell, ask := range map[string]string{
		"bash": `. $SCRIPT; COMP_WORDS=($LINE); COMP_CWORD=$((${#COMP_WORDS[@]}-1)); _mtagd; printf '%s\n' "${COMPREPLY[@]}"`,
		// _describe needs a terminal: its stand-in prints what it is given.
		"zsh":  `compdef() { }; . $SCRIPT; _describe() { print -l -- ${(P)2}; }; words=(${=LINE}); CURRENT=${#words}; _mtagd | grep -e "^${words[-1]}" | sed 's/:.*//'`,
		"fish": `source $SCRIPT; complete -C "$LINE" | string replace -r '\t.*' ''`,
	} {
		t.Run(shell, func(t *testing.T) {
			program := testenv.Program(t, shell)
			script := filepath.Join(t.TempDir(), "script")
			text, err := exec.Command("mtagd", "completion", shell).Output()
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(script, text, 0o600); err != nil {
				t.Fatal(err)
			}
			for line, want := range map[string]string{
				"mtagd key is":              "issue",
				"mtagd serve --acme-e":      "--acme-eab-hmac-key --acme-eab-key-id --acme-email",
				"mtagd backup --data d li":  "list",
				"mtagd key issue --persona": "--personal-data",
				"mtagd ma":                  "",
			} {
				cmd := exec.Command(program, "-c", ask)
				cmd.Env = append(os.Environ(), "LINE="+line, "SCRIPT="+script, "HOME="+t.TempDir())
				out, err := cmd.CombinedOutput()
				got := strings.Fields(string(out))
				if want == "" && shell != "bash" { // may fall back to files
					continue
				}
				slices.Sort(got)
				if strings.Join(got, " ") != want {
					t.Errorf("%s: got %q, want %q, %v", line, got, want, err)
				}
			}
		})
	}
}

// Each command has a man page, in which roff finds nothing wrong.
func TestManPages(t *testing.T) {
	groff := testenv.Program(t, "groff")
	dir := t.TempDir()
	if out, err := exec.Command("mtagd", "man", dir).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	pages, err := filepath.Glob(filepath.Join(dir, "*.1"))
	if err != nil || len(pages) < 40 {
		t.Fatal(len(pages), err)
	}
	out, err := exec.Command(groff, append([]string{"-man", "-ww", "-z", "-Tutf8"}, pages...)...).CombinedOutput()
	if err != nil || len(out) > 0 {
		t.Errorf("%v: %.2000s", err, out)
	}
	page, err := exec.Command(groff, "-man", "-Tascii", "-P-cbou", filepath.Join(dir, "mtagd-key-issue.1")).Output()
	if err != nil || !strings.Contains(string(page), "--partner=PARTNER_ID") || !strings.Contains(string(page), "[$MTAGD_EXPIRES_IN]") {
		t.Errorf("%v: %s", err, page)
	}
}
