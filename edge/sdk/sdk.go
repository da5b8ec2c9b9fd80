// Package sdk is the browser tag: the loader script that a page fetches from its tag host (spec, Browser installation
// contract). Its source is in src, in TypeScript without dependencies; go generate builds loader.js from it. mtag.d.ts
// has the types for sites.
//
// The script runs the calls of mtag(), detects page views, and keeps each event until the tag host has answered it. It
// sends events to POST /mark/:tagId, one as a JSON object or several as an array, and identifiers to POST /id/:tagId.
// Bodies are sent as text/plain, so that the browser needs no preflight. In the browser the script keeps:
//
//	cookie _muid                   the visitor's muid, on the site's root domain, for 400 days after the last page
//	localStorage _mtag.<tagId>.…   an event that has no answer yet: its JSON text without the muid. The key ends with
//	                               the time in ms, the endpoint (mark or id) and a random number
//	localStorage _mtag.lease       until when one tab may send, in ms, on pages without Web Locks
//
// Without consent it stores and sends nothing.
//
// Extras are scripts for automatic events. They are in src/extras and are built into extras. A page that asks for some
// gets them behind the loader. They only make calls of mtag(), so they need nothing else of the loader.
package sdk

import (
	"embed"
	"fmt"
	"path"
	"strings"
)

//go:generate go tool esbuild src/tag.ts --bundle --minify --format=iife --target=es2017 --log-level=warning --outfile=loader.js
//go:generate go tool esbuild src/extras/downloads.ts src/extras/forms.ts src/extras/ga4.ts src/extras/outbound.ts src/extras/scroll.ts --bundle --minify --format=iife --target=es2017 --log-level=warning --outdir=extras

//go:embed loader.js
var loader []byte

//go:embed extras/*.js
var extraFiles embed.FS

// Loader returns the script in UTF-8. The caller must not change it.
func Loader() []byte { return loader }

// Extra is a script for automatic events.
type Extra struct {
	Name   string // by which pages ask for it
	Script []byte // in UTF-8
}

// Extras returns all extras, ordered by name.
func Extras() []Extra {
	files, err := extraFiles.ReadDir("extras")
	if err != nil {
		panic(fmt.Errorf("the binary has no extras: %w", err))
	}
	extras := make([]Extra, len(files))
	for i, file := range files {
		script, err := extraFiles.ReadFile(path.Join("extras", file.Name()))
		if err != nil {
			panic(fmt.Errorf("the binary has no %s: %w", file.Name(), err))
		}
		extras[i] = Extra{Name: strings.TrimSuffix(file.Name(), ".js"), Script: script}
	}
	return extras
}
