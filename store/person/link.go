package person

import (
	"slices"

	"mtagd/store"
)

// A link decides which events a person's requests take. So links have a source. Whoever knows a tag id and an identifier can learn the
// muid of that identifier, and can link other identifiers to it, or that identifier to another muid. Such links are claimed. The cookie
// of the tag host cannot be trusted either once somebody may know its muid: anyone can write a header. What nobody can know is the muid of
// a visitor to whom no identifier was linked yet.

// MaxFormerLinks is how many links of one identifier are kept of each source but BySecret, beside the one that counts now. Of more, the
// first ones are kept, so that nobody can push others out.
const MaxFormerLinks = 100

// SourceOf returns the source of new links to a muid. isLinked says whether an identifier was linked to it before.
func SourceOf(said store.LinkSource, isLinked bool) store.LinkSource {
	if said == store.ByCookie && isLinked {
		return store.ByAnyone
	}
	return said
}

// KeepsFormer reports whether a link that was replaced is kept, when there are n former ones of its identifier and source.
func KeepsFormer(source store.LinkSource, n int) bool {
	return source == store.BySecret || n < MaxFormerLinks
}

// Of returns the hashes of a person. links are those of the identifier, former ones included; there are none if a muid names the person.
func Of(named *store.Identity, links []store.Link, withClaimed bool) store.Person {
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
