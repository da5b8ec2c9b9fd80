// Package store is the vocabulary of mtagd: partners, API keys, merchants, tags, identities and
// events, the rules that belong to each of them, and the contract of a storage engine.
//
// It imports no engine. Read in this order:
//
//	ids.go        one type per kind of id, so that the compiler tells them apart
//	partner.go    Partner and its API Key
//	merchant.go   Merchant
//	tag.go        Tag: types, states, transitions
//	domain.go     root domains and host names
//	dns.go        what a look at a tag host's DNS comes to
//	identity.go   who an event belongs to: muid, email, phone, deviceId
//	event.go      Mark (an event on its way in), Event (as listed), Query
//	errors.go     the kinds of error an engine returns
//	engine.go     the contract that every engine keeps
//	directory.go  the in-memory look-ups of the hot path, fed by an engine's committed changes
package store
