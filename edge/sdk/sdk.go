// Package sdk holds the browser tag: the loader script that a page fetches from its tag host
// (spec, Browser installation contract). The source is in src, in TypeScript without dependencies. go generate makes
// loader.js from it. Sites can use the types in mtag.d.ts.
//
// The script runs the calls of mtag(), detects page views, and keeps each event until the tag host has answered it. It
// sends events to POST /mark/:tagId, one as a JSON object or several as an array, and identifiers to POST /id/:tagId.
// Both are sent as text/plain, so that the browser needs no preflight. In the browser it keeps:
//
//	cookie _muid                   the visitor's muid, on the site's root domain, for 400 days after the last page
//	localStorage _mtag.<tagId>.…   an event without an answer: its JSON text without the muid. The key continues
//	                               with the time in ms, the endpoint and a random number
//	localStorage _mtag.lease       until when another tab sends, in browsers without Web Locks
//
// Without consent it stores and sends nothing.
package sdk

import _ "embed"

//go:generate go tool esbuild src/tag.ts --bundle --minify --format=iife --target=es2017 --log-level=warning --outfile=loader.js

//go:embed loader.js
var loader []byte

// Loader returns the script in UTF-8. The caller must not change it.
func Loader() []byte { return loader }
