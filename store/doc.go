// Package store is the vocabulary of mtagd: partners, API keys, merchants, tags, identities and events, the rules that
// belong to each of them, and the contract of a storage engine.
//
// "The spec" in comments is the Tracking Tag Partner Service Specification, which the service implements. Customers rely
// on its words, formats and rules. So a change of the code must not change what a comment quotes from the spec.
//
// Engines store Partner, Key, Merchant with its Secrets, Tag, DNSFinding, Session and AuditEntry as JSON on disk. A
// field may be added; none may be renamed or get another meaning. Customers never see it: partnerapi has its own types.
//
// The package imports no engine. Read in this order:
//
//	engine.go       the contract of every engine
//	verify.go       what an engine finds when it verifies its data
//	audit.go        the audit log: who changed which control data, and when
//	certificate.go  which host names may have a TLS certificate, and the state of a certificate
//	directory.go    the in-memory look-ups of every request, which an engine fills; authentication
//	event.go        Mark (an event to record), Event (as listed), Query and Page
//	details.go      the fields of an event that engines only store and return
//	position.go     positions, cursors and ids of events
//	feed.go         events in the order of receipt
//	summary.go      SummaryQuery and Summary: counts by time and group; the buckets of a time zone
//	identity.go     who an event belongs to: muid, email, phone, deviceId
//	erasure.go      what is stored of a person, and its removal
//	removal.go      other removals in the background
//	document.go     documents of other parts of the service: destinations, delivery states, dead letters
//	shared.go       what several nodes on one store share
//	limits.go       what a partner and a merchant may use
//	merchant.go     Merchant, and whose it is
//	claim.go        claims: who has a root domain, when it becomes free, and which names can be claimed
//	tag.go          Tag: types, states, transitions, and whose it is
//	label.go        the labels of tags: how many, and drawing one
//	partner.go      Partner
//	key.go          API keys, and when one is valid
//	secret.go       merchants' secrets
//	session.go      who is signed in to the web console, and the links that sign in
//	credential.go   the text of API keys, secrets, sessions and links
//	ids.go          one type per kind of id, so that the compiler tells them apart
//	merchantkey.go  a merchant's id as bytes
//	domain.go       root domains and host names
//	public.go       which names and addresses are public
//	dns.go          the result of checking a tag host's DNS
//	time.go         times as clients write them
//	errors.go       the kinds of error; each protocol maps them to its own codes
//	sort.go         sorting of short lists
package store
