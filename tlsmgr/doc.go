// Package tlsmgr looks after the names that tags live on: it checks that a tag host's DNS reaches the
// service.
//
//	verify.go    Verifier: what all resolvers together say about a host
//	look.go      what one resolver sees: a chain of CNAME records, or a flattened record
//	resolver.go  one question to one resolver, and when its answer may be believed
//
// Nothing here changes a tag: a caller keeps the finding and applies the transition.
package tlsmgr
