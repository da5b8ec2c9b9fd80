package tag

import (
	"bytes"
	"net/url"
	"strconv"
	"time"

	"mtagd/store"
)

// Endpoint is one of the endpoints of a tag host.
type Endpoint uint8

// The endpoints of a tag host.
const (
	endpointNone Endpoint = iota // any other path: 404
	endpointMark
	endpointID
	endpointScript
	endpointHealth

	Endpoints // the number of endpoints
)

var endpointNames = [Endpoints]string{"other", "mark", "id", "script", "health"}

func (e Endpoint) String() string { return endpointNames[e] }

// Route is the endpoint, the host and the tag that a request names. It aliases the request.
type Route struct {
	Endpoint Endpoint

	host  string // as store.HostName returns it
	id    []byte // the tag id in the path, or the script's version, as it was sent; nil without one
	query []byte // as it was sent
}

// NewRoute finds the route of a request. host is as store.HostName returns it; path and query are as sent.
func NewRoute(host string, path, query []byte) Route {
	r := Route{host: host, query: query}
	name, id, hasID := splitPath(path)
	endpoint := endpointNamed(name)
	switch {
	case !hasID:
		r.Endpoint = endpoint
	case endpoint != endpointMark && endpoint != endpointID && endpoint != endpointScript:
		// Only these have more in their path: a tag id, or a version.
	case len(id) > 0 && bytes.IndexByte(id, '/') < 0:
		r.Endpoint, r.id = endpoint, id
	}
	return r
}

// IsPath reports whether a path belongs to the tag protocol. It decides on a host that also serves the partner API.
func IsPath(path []byte) bool {
	name, _, _ := splitPath(path)
	return endpointNamed(name) != endpointNone
}

// splitPath splits a path into its first segment, which names the endpoint, and the rest.
func splitPath(path []byte) (name, rest []byte, hasRest bool) {
	if len(path) == 0 || path[0] != '/' {
		return nil, nil, false
	}
	return bytes.Cut(path[1:], []byte("/"))
}

func endpointNamed(name []byte) Endpoint {
	for e := endpointMark; e < Endpoints; e++ {
		if string(name) == endpointNames[e] {
			return e
		}
	}
	return endpointNone
}

// findTag returns the active tag of a request and the settings of its merchant. It is the tag that the route names, or the
// host's only tag when the route names none. If there is none, or if it is suspended, findTag returns the refusal.
func (s *Server) findTag(route Route) (store.Tag, store.MerchantSettings, *answer) {
	host := route.host
	if host == s.cfg.ClientTagHost {
		host = "" // the directory keeps client-side tags under ""
	}
	var tag store.Tag
	var ok bool
	if id, named := route.tagID(); named {
		tag, ok = s.directory.Tag(id)
	} else {
		tag, ok = s.directory.OnlyTag(host)
	}
	if !ok || tag.Host != host {
		return tag, store.MerchantSettings{}, tagNotFound
	}
	settings := s.directory.Settings(&tag)
	return tag, settings, refusalByState(&tag, settings)
}

// refusalByState returns the answer to all requests for a tag that is suspended or not active; nil for any other tag.
func refusalByState(tag *store.Tag, settings store.MerchantSettings) *answer {
	switch {
	case settings.Suspended:
		return tagSuspended
	case tag.Status() != store.Active:
		return tagNotActive
	}
	return nil
}

// tagID returns the tag id in the path, or else the one in the query (?tagId=), percent-decoded, and false without one.
func (r *Route) tagID() (store.TagID, bool) {
	if r.id != nil {
		return decodeTagID(r.id, url.PathUnescape), true
	}
	if id, ok := r.parameter("tagId="); ok {
		return decodeTagID(id, url.QueryUnescape), true
	}
	return "", false
}

// asksForCookie reports whether the answer shall renew the cookie (?renew=1).
func (r *Route) asksForCookie() bool {
	value, _ := r.parameter("renew=")
	return string(value) == "1"
}

// clockBehind returns how far the sender's clock is behind the given time, negative when it is ahead. The sender says what
// time it has (?t=, in ms since 1970). The result is 0 when it does not, or when the difference is at most
// store.MaxClockLead: much of that may be the way of the request.
func (r *Route) clockBehind(now time.Time) time.Duration {
	text, ok := r.parameter("t=")
	if !ok {
		return 0
	}
	ms, err := strconv.ParseInt(view(text), 10, 64)
	if err != nil {
		return 0
	}
	behind := now.Sub(time.UnixMilli(ms))
	if behind.Abs() <= store.MaxClockLead {
		return 0
	}
	return behind
}

// parameter returns the value of a parameter of the query as it was sent, and whether the query has it. name ends with =.
func (r *Route) parameter(name string) ([]byte, bool) {
	for pair := range bytes.SplitSeq(r.query, []byte("&")) {
		if value, ok := bytes.CutPrefix(pair, []byte(name)); ok {
			return value, true
		}
	}
	return nil, false
}

// decodeTagID decodes a percent-encoded tag id. The result aliases id when there is nothing to decode. An id with a
// malformed escape is returned as it is: no tag has such an id.
func decodeTagID(id []byte, unescape func(string) (string, error)) store.TagID {
	if bytes.IndexByte(id, '%') >= 0 {
		if decoded, err := unescape(string(id)); err == nil {
			return store.TagID(decoded)
		}
	}
	return store.TagID(view(id))
}
