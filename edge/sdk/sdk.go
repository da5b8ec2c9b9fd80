// Package sdk is the browser tag: the loader script that a page fetches from its tag host (spec, Browser installation
// contract). Its source is in src, in TypeScript without dependencies; go generate builds loader.js from it. mtag.d.ts
// has the types for sites.
//
// The script runs the calls of mtag(), detects page views, and keeps each event until the tag host has answered it. Read
// its source in this order:
//
//	tag.ts          the calls of mtag()
//	choice.ts       consent, and the page's beforeSend
//	attribution.ts  the campaign and the click that brought the visitor, and the session
//	delivery.ts     sends the events of the queue, retries, stops when consent is withdrawn
//	lock.ts         one tab sends at a time
//	queue.ts        the events without an answer, in memory and in localStorage
//	page.ts         the fields of events, and page views
//	visitor.ts      the muid and its cookie
//	storage.ts      localStorage and JSON
//	warn.ts         lines in the console
//
// # Requests
//
// The script sends events to POST /mark/:tagId, one as a JSON object or several as an array, and identifiers to
// POST /id/:tagId. Bodies are sent as text/plain, so that the browser needs no preflight. The query has
//
//	t=MS       the browser's clock in ms since 1970, by which the tag host corrects event_time
//	renew=1    the tag host may set the cookie _muid again. The script asks for it once a day, and only in a request that
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
//	utm_source …         GA4 Measurement Protocol, event campaign_details: source, medium, campaign, term, content; utm_id is campaign_id
//	session_id           GA4: params.session_id. It is unique together with the muid, and not the id that Google's own tag uses
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
//	                               with emails or phone numbers is alone, without them, after a space. The key ends
//	                               with the time in ms, "mark" and a random number. The guide's element for
//	                               pages that are left early writes such keys too, each with one event without a muid
//	localStorage _mtag.renewed     when the script last sent renew=1, in ms
//	localStorage _mtag.            tells other tabs that consent was withdrawn; it is removed at once
//
// Without consent it stores and sends nothing. The calls of identify wait in memory only.
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

// The fields of an entry of the queue get short names; the page never sees them.
//go:generate go tool esbuild src/tag.ts --tsconfig-raw={} --bundle --minify --mangle-props=^(text|told|call|stop|lasts|record)$ --format=iife --target=es2017 --log-level=warning --outfile=loader.js
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
