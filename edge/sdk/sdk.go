// Package sdk is the browser tag: the loader script that a page fetches from its tag host (spec, Browser installation
// contract). Its source is in src, in TypeScript without dependencies; go generate builds loader.js from it. npm has
// the same as the package @mtagd/tag, with the types for sites.
//
// The script runs the calls of mtag(), detects page views, and keeps each event until the tag host has answered it. Read
// its source in this order:
//
//	tag.ts          the calls of mtag()
//	choice.ts       consent: yes or no
//	kit.ts          what parts use and replace
//	parts.ts        loads parts; calls that wait for one
//	delivery.ts     sends the events of the queue, retries, stops when consent is withdrawn
//	queue.ts        the events without an answer, in memory and in localStorage
//	page.ts         the fields of events, and page views
//	visitor.ts      the muid and its cookie
//	storage.ts      localStorage and JSON
//	warn.ts         lines in the console
//	extras          scripts for pages that ask for them: automatic events, and parts of the tag such as attribution
//
// # Requests
//
// The script sends events to POST /mark/:tagId, one as a JSON object or several as an array, and identifiers to
// POST /id/:tagId. Bodies are sent as text/plain, so that the browser needs no preflight. The query has
//
//	t=MS       the browser's clock in ms since 1970, by which the tag host corrects event_time
//	renew=1    the tag host may set the cookie _muid again. The script asks for it once a page, and only in a request that
//	           ends with its page: an answer must not bring back a cookie that the visitor has had deleted
//
// An event leaves the queue on an answer with the header Mtag and a JSON body. Without the header the answer is from
// something in between, such as a captive portal, and the script tries again, as after 408, 421, 425, 429, 431 and 5xx.
//
// # Which platform wants which field
//
//	gclid gbraid wbraid  Google Ads API, ClickConversion: the same names
//	dclid                Campaign Manager 360 API, Conversion: dclid
//	fbc fbp              Meta Conversions API: user_data.fbc, user_data.fbp
//	ttclid               TikTok Events API: user.ttclid
//	msclkid              Microsoft: userData.msclkid (Conversions API), MicrosoftClickId (offline conversions)
//	utm_source …         GA4 Measurement Protocol, event campaign_details: source, medium, campaign, term, content;
//	                     utm_id is campaign_id
//	session_id           GA4: params.session_id. It is unique only together with the muid. Google's own tag uses another id
//	event_id             Meta and TikTok: event_id
//	muid                 Meta: user_data.external_id. TikTok: user.external_id, hashed. GA4: client_id
//	pageUrl              Meta: event_source_url. TikTok: page.url
//	consent              Google: consent.ad_user_data and consent.ad_personalization, GRANTED or DENIED
//
// # What the script keeps in the browser
//
//	cookie _muid                   the visitor's muid, on the site's root domain, for 400 days after the last page
//	cookie _mtag.visit             attribution and session, on the root domain, for 90 days after the last event
//	localStorage _mtag.<tagId>.…   events that have no answer yet, made together: their JSON texts, one a line. An event
//	                               with emails or phone numbers is there without them, after a space. The key ends
//	                               with the time in ms, "mark", a random text, a comma and the cookie _muid. With another
//	                               cookie they are removed: consent was withdrawn on another host, which cannot do that
//	localStorage _mtag..consent    the last call of consent, which other tabs repeat, the muid and the time
//	localStorage _mtag..reset      likewise of reset, with the muid before it: records of that muid are still sent
//
// Without consent it stores and sends nothing. It reads the cookie _muid and what other tabs have said, and removes what it
// finds in localStorage without that cookie.
// The calls of identify wait in memory only.
//
// Extras are scripts that pages ask for: automatic events, and parts of the tag that few pages need. They are in
// src/extras and are built into extras. They stand before the loader in the same file.
package sdk

import (
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"fmt"
	"io/fs"
	"path"
	"strings"
)

// Names that end with an underscore get short ones; the page never sees them. A second pass finds shorter ones for
// variables. The first line of each script asks Chromium to compile all functions before it runs, off the main thread: a
// fifth of what the load cost.
//go:generate go tool esbuild src/tag.ts --tsconfig-raw={} --bundle --minify --mangle-props=_$ --mangle-cache=src/names.json --format=iife --target=es2019 --log-level=warning --outfile=loader.js
//go:generate go tool esbuild loader.js --tsconfig-raw={} --minify --target=es2019 --log-level=warning --allow-overwrite "--banner:js=//# allFunctionsCalledOnLoad" --outfile=loader.js
//go:generate go tool esbuild src/extras/attribution.ts src/extras/backlog.ts src/extras/downloads.ts src/extras/forms.ts src/extras/ga4.ts src/extras/link.ts src/extras/names.ts src/extras/older.ts src/extras/options.ts src/extras/outbound.ts src/extras/scroll.ts --tsconfig-raw={} --bundle --minify --mangle-props=_$ --mangle-cache=src/names.json --format=iife --target=es2019 --log-level=warning "--banner:js=//# allFunctionsCalledOnLoad" --outdir=extras

// The npm package @mtagd/tag has the same scripts as modules, which do nothing on a server. It includes the parts that the
// base script loads by itself.
//go:generate go tool esbuild src/npm.ts --tsconfig-raw={} --bundle --minify --mangle-props=_$ --mangle-cache=src/names.json --format=iife --target=es2019 --log-level=warning "--banner:js=const browser = typeof document != 'undefined'; if (browser) {" "--footer:js=} export const mtag = (...call) => { if (browser) window.mtrem.push(call); };" --outfile=npm/index.js
//go:generate go tool esbuild src/extras/attribution.ts src/extras/backlog.ts src/extras/downloads.ts src/extras/forms.ts src/extras/ga4.ts src/extras/link.ts src/extras/names.ts src/extras/older.ts src/extras/options.ts src/extras/outbound.ts src/extras/scroll.ts --tsconfig-raw={} --bundle --minify --mangle-props=_$ --mangle-cache=src/names.json --format=iife --target=es2019 --log-level=warning "--banner:js=if (typeof document != 'undefined') {" --footer:js=} --outdir=npm/parts

//go:embed loader.js extras/*.js
var files embed.FS

// kept has a directory for each version that was released before, named after it. It has the files of that version.
//
//go:embed all:kept
var kept embed.FS

// Version is the loader and its extras at a time. Pages can ask for a version by its name, and get the same for ever.
type Version struct {
	Name   string  // a hash of the scripts
	Loader []byte  // in UTF-8
	Extras []Extra // ordered by name
}

// Extra is a script for pages that ask for it.
type Extra struct {
	Name   string // by which pages ask for it
	Script []byte // in UTF-8
}

// Versions returns the present version, and then those that were released before. The caller must not change the scripts.
func Versions() []Version {
	all := []Version{read(files)}
	for _, loader := range glob(kept, "kept/*/loader.js") {
		of, err := fs.Sub(kept, path.Dir(loader))
		if err != nil {
			panic(err) // only for an invalid name
		}
		if v := read(of); v.Name != all[0].Name {
			all = append(all, v)
		}
	}
	return all
}

func glob(in fs.FS, pattern string) []string {
	names, err := fs.Glob(in, pattern)
	if err != nil {
		panic(err) // only for an invalid pattern
	}
	return names
}

func read(of fs.FS) Version {
	var v Version
	hash := sha256.New()
	content := func(name string) []byte {
		script, err := fs.ReadFile(of, name)
		if err != nil {
			panic(fmt.Errorf("the binary has no %s: %w", name, err))
		}
		fmt.Fprintf(hash, "%s %d\n%s", name, len(script), script)
		return script
	}
	v.Loader = content("loader.js")
	for _, name := range glob(of, "extras/*.js") {
		v.Extras = append(v.Extras, Extra{Name: strings.TrimSuffix(path.Base(name), ".js"), Script: content(name)})
	}
	v.Name = hex.EncodeToString(hash.Sum(nil)[:8])
	return v
}
