// Package sdk is the browser tag: the loader script that a page fetches from its tag host (spec, Browser installation
// contract). Its source is in src, in TypeScript without dependencies; go generate builds loader.js from it. mtag.d.ts
// has the types for sites.
//
// The script runs the calls of mtag(), detects page views, and keeps each event until the tag host has answered it. It
// sends events to POST /mark/:tagId, one as a JSON object or several as an array, and identifiers to POST /id/:tagId.
// Bodies are sent as text/plain, so that the browser needs no preflight. In the browser the script keeps:
//
//	cookie _muid                   the visitor's muid, on the site's root domain, for 400 days after the last page
//	cookie _mtag.visit             attribution and session, on the root domain, for 90 days after the last event
//	localStorage _mtag.<tagId>.…   an event that has no answer yet: its JSON text without the muid. The key ends with
//	                               the time in ms, the endpoint (mark or id) and a random number
//	localStorage _mtag.lease       until when one tab may send, in ms, on pages without Web Locks
//
// Without consent it stores and sends nothing.
package sdk

import _ "embed"

//go:generate go tool esbuild src/tag.ts --bundle --minify --format=iife --target=es2017 --log-level=warning --outfile=loader.js

//go:embed loader.js
var loader []byte

// Loader returns the script in UTF-8. The caller must not change it.
func Loader() []byte { return loader }
