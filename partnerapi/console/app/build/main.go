// Command build bundles the console into ../../dist: index.html, and below assets the scripts and the style with a hash
// of their content in their names. The same source gives the same files. It needs the packages of npm ci in ../.
package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/evanw/esbuild/pkg/api"
)

//go:generate go run .

func main() {
	if err := build("..", filepath.Join("..", "..", "dist")); err != nil {
		fmt.Fprintln(os.Stderr, "build:", err)
		os.Exit(1)
	}
}

// build bundles the source in the folder app into the folder dist, which it replaces.
func build(app, dist string) error {
	app, err := filepath.Abs(app)
	if err != nil {
		return err
	}
	result := api.Build(api.BuildOptions{
		AbsWorkingDir:     app,
		EntryPoints:       []string{"src/main.tsx"},
		Outdir:            "assets",
		EntryNames:        "console-[hash]",
		ChunkNames:        "[name]-[hash]",
		AssetNames:        "[name]-[hash]",
		PublicPath:        "/console/assets/",
		Bundle:            true,
		Splitting:         true, // what a page imports on demand is a file of its own
		Format:            api.FormatESModule,
		Target:            api.ES2022,
		JSX:               api.JSXAutomatic,
		JSXImportSource:   "preact",
		MinifyWhitespace:  true,
		MinifyIdentifiers: true,
		MinifySyntax:      true,
		Charset:           api.CharsetUTF8,
		LegalComments:     api.LegalCommentsNone,
		LogLevel:          api.LogLevelWarning,
	})
	if len(result.Errors) > 0 {
		return fmt.Errorf("%d errors", len(result.Errors))
	}
	page, err := os.ReadFile(filepath.Join(app, "index.html"))
	if err != nil {
		return err
	}
	var preloads strings.Builder
	for _, file := range result.OutputFiles {
		name := filepath.Base(file.Path)
		kind, _, _ := strings.Cut(name, "-")
		switch kind + filepath.Ext(name) {
		case "console.js":
			page = bytes.ReplaceAll(page, []byte("{{script}}"), []byte(name))
		case "console.css":
			page = bytes.ReplaceAll(page, []byte("{{style}}"), []byte(name))
		case "chunk.js": // what several scripts need
			fmt.Fprintf(&preloads, "<link rel=\"modulepreload\" href=\"/console/assets/%s\">\n", name)
		}
	}
	page = bytes.ReplaceAll(page, []byte("{{preloads}}\n"), []byte(preloads.String()))

	if err := os.RemoveAll(dist); err != nil {
		return err
	}
	assets := filepath.Join(dist, "assets")
	if err := os.MkdirAll(assets, 0o755); err != nil {
		return err
	}
	for _, file := range result.OutputFiles {
		if err := os.WriteFile(filepath.Join(assets, filepath.Base(file.Path)), file.Contents, 0o644); err != nil {
			return err
		}
	}
	return os.WriteFile(filepath.Join(dist, "index.html"), page, 0o644)
}
