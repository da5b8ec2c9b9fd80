// Package sdk holds the browser tag: the loader script that a page fetches from its tag host
// (spec, Browser installation contract). Its source is in src, in TypeScript without dependencies; loader.js is
// made of it by go generate. The types that sites can use are in mtag.d.ts.
//
// The script answers to the calls of mtag(), keeps events until the tag host has answered for them, and sees
// page views by itself. It sends to POST /mark/:tagId an event as one JSON object, or several as an array, as
// text/plain so that the browser asks for no preflight, and to POST /id/:tagId what identifies the visitor. In the
// browser it keeps:
//
//	cookie _muid                   the visitor's muid, on the site's root domain, 400 days from the last page
//	localStorage _mtag.<tagId>.…   an event that is not answered for yet: its JSON text without the muid;
//	                               the key goes on with the time in ms, the endpoint and a random number
//	localStorage _mtag.lease       until when another tab sends, where the browser has no Web Locks
//
// Without consent it keeps and sends nothing.
package sdk

import _ "embed" // the loader is a file beside this one

//go:generate go tool esbuild src/tag.ts --bundle --minify --format=iife --target=es2017 --log-level=warning --outfile=loader.js

//go:embed loader.js
var loader []byte

// Loader is the script, UTF-8 encoded. The caller must not change it.
func Loader() []byte { return loader }
