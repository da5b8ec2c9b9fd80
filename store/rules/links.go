package rules

import (
	"slices"

	"mtagd/store"
)

// A link decides which events a person's requests take. So links have a source. Whoever knows a tag id and an identifier can
// learn the muid of that identifier, and can link other identifiers to it, or that identifier to another muid. Such links
// are claimed. The cookie of the tag host cannot be trusted either once somebody may know its muid: anyone can write a
// header. Nobody can know the muid of a visitor to whom no identifier was linked yet.

// SourceOfLink returns the source of a link. before is that of an earlier link of the same identifier and muid: a link
// never gets a lesser one. isLinked says whether an identifier was linked to the muid before, and cookies how many links
// ByCookie the identifier has, former ones included.
func SourceOfLink(said, before store.LinkSource, isLinked bool, cookies int) store.LinkSource {
	if said == store.ByCookie && (isLinked || cookies >= store.MaxCookieLinks) {
		return before
	}
	return max(said, before)
}

// KeepsFormerLink reports whether a link that was replaced is kept, when n former links ByAnyone of its identifier are. A
// trusted one always is, whatever strangers have made before.
func KeepsFormerLink(source store.LinkSource, n int) bool {
	return source.IsTrusted() || n < store.MaxFormerLinks
}

// PersonOf returns the hashes of a person. links are those of the identifier, former ones included; there are none if a muid
// names the person.
func PersonOf(named *store.Identity, links []store.Link, withClaimed bool) store.Person {
	p := store.Person{Identifiers: slices.Clone(named.Keys()), WithClaimed: withClaimed}
	if named.MUID != "" {
		p.MUIDs = append(p.MUIDs, store.MUIDKey(named.MUID))
	}
	for _, l := range links {
		if l.Source.IsTrusted() || withClaimed {
			p.MUIDs = append(p.MUIDs, store.MUIDKey(l.MUID))
		} else {
			p.Claimed = append(p.Claimed, store.MUIDKey(l.MUID))
		}
	}
	compare := func(a, b store.IdentityKey) int { return slices.Compare(a[:], b[:]) }
	slices.SortFunc(p.MUIDs, compare)
	slices.SortFunc(p.Claimed, compare)
	p.MUIDs, p.Claimed = slices.Compact(p.MUIDs), slices.Compact(p.Claimed)
	return p
}
