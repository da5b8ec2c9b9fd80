package main

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// maxGuideWords is how many words all guides together may have: whoever runs or uses the service has to read them.
const maxGuideWords = 24_000

// Links between guides lead to files that exist, and to headings in them.
func TestGuides(t *testing.T) {
	guides := map[string]string{}
	words := 0
	err := filepath.WalkDir("../..", func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && (entry.Name() == "node_modules" || entry.Name() == ".git" || entry.Name() == "bin"):
			return filepath.SkipDir
		case filepath.Ext(path) != ".md":
			return nil
		}
		text, err := os.ReadFile(path)
		guides[path] = string(text)
		words += len(strings.Fields(string(text)))
		return err
	})
	if err != nil || len(guides) < 10 {
		t.Fatal(len(guides), err)
	}
	if words > maxGuideWords {
		t.Errorf("the guides have %d words, more than %d", words, maxGuideWords)
	}
	code := regexp.MustCompile("(?s)```.*?```|`[^`\n]*`")
	for path, text := range guides {
		for _, link := range regexp.MustCompile(`\]\(([^)\s]+)\)`).FindAllStringSubmatch(code.ReplaceAllString(text, ""), -1) {
			file, anchor, _ := strings.Cut(link[1], "#")
			if strings.Contains(file, "://") {
				continue
			}
			target := path
			if file != "" {
				target = filepath.Join(filepath.Dir(path), file)
			}
			if _, err := os.Stat(target); errors.Is(err, fs.ErrNotExist) {
				t.Errorf("%s links to %s, which does not exist", path, link[1])
			} else if anchor != "" && !anchorsOf(guides[target])[anchor] {
				t.Errorf("%s links to %s, but there is no such heading", path, link[1])
			}
		}
	}
}

// anchorsOf returns the anchors of the headings in a guide, as GitHub makes them.
func anchorsOf(guide string) map[string]bool {
	anchors := map[string]bool{}
	text := regexp.MustCompile("(?s)```.*?```").ReplaceAllString(guide, "")
	for _, heading := range regexp.MustCompile(`(?m)^#+ (.*)$`).FindAllStringSubmatch(text, -1) {
		plain := regexp.MustCompile(`[^\p{L}\p{N} _-]`).ReplaceAllString(strings.ToLower(heading[1]), "")
		anchors[strings.ReplaceAll(plain, " ", "-")] = true
	}
	return anchors
}
