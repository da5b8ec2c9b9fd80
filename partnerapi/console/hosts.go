package console

import (
	"cmp"
	"slices"
	"time"

	"mtagd/store"
)

// hostsAge is how old the list of hosts may be: there may be many thousands.
const hostsAge = 10 * time.Second

// dueBefore is how long before its end a certificate is due. The service renews a certificate when a third of its life is
// left. So one that is due could probably not be renewed.
const dueBefore = 14 * 24 * time.Hour

// hostsJSON is the JSON of all hosts.
type hostsJSON struct {
	Total  int        `json:"total"`
	Due    int        `json:"due"`    // certificates that failed, or end within two weeks
	NotDNS int        `json:"notDns"` // hosts whose DNS leads elsewhere
	Items  []hostJSON `json:"items"`  // those that need somebody first, then by the end of the certificate
}

type hostJSON struct {
	Host        string           `json:"host"`
	Kind        string           `json:"kind"` // own, server-side or preverified
	Partner     store.PartnerID  `json:"partnerId,omitempty"`
	DNS         *hostDNS         `json:"dns"`         // null for hosts that are not checked
	Certificate *hostCertificate `json:"certificate"` // null without TLS

	expires time.Time
	trouble int // 2: certificate, 1: DNS, 0: none
}

type hostDNS struct {
	Connected bool      `json:"connected"`
	Detail    string    `json:"detail,omitempty"` // of the last check that changed the finding
	CheckedAt time.Time `json:"checkedAt"`        // when that check was; null: there was none
}

type hostCertificate struct {
	store.Certificate
	Due bool `json:"due"`
}

// listHosts returns the hosts that are served, with their DNS and certificates, at most maxListed of them.
func (c *Console) listHosts(now time.Time) hostsJSON {
	names := c.hosts.All()
	view := hostsJSON{Total: len(names), Items: make([]hostJSON, 0, len(names))}
	for _, name := range names {
		host := c.host(name, now)
		if host.Certificate != nil && host.Certificate.Due {
			view.Due++
		}
		if host.DNS != nil && !host.DNS.Connected {
			view.NotDNS++
		}
		view.Items = append(view.Items, host)
	}
	store.Sort(view.Items, func(a, b hostJSON) int {
		return cmp.Or(cmp.Compare(b.trouble, a.trouble), a.expires.Compare(b.expires), cmp.Compare(a.Host, b.Host))
	})
	view.Items = slices.Clip(view.Items[:min(len(view.Items), maxListed)])
	return view
}

func (c *Console) host(name string, now time.Time) hostJSON {
	host := hostJSON{Host: name, Kind: "own", Partner: c.hosts.Partner(name)}
	if !c.hosts.IsOwn(name) {
		host.Kind = string(store.Preverified)
		if tags := c.Engine.Directory().TagsOn(name); len(tags) > 0 { // else nobody has checked its DNS
			host.Kind, host.DNS = string(tags[0].Type), dnsOf(tags)
		}
	}
	if host.DNS != nil && !host.DNS.Connected {
		host.trouble = 1
	}
	if c.Certificates == nil {
		return host
	}
	cert := c.Certificates.Certificate(name)
	due := cert.Status == store.CertificateFailed || !cert.NotAfter.IsZero() && cert.NotAfter.Sub(now) < dueBefore
	if due {
		host.trouble = 2
	}
	host.expires, host.Certificate = cert.NotAfter, &hostCertificate{cert, due}
	return host
}

// dnsOf returns what is known of the DNS of a host with some tags.
func dnsOf(tags []store.Tag) *hostDNS {
	dns := &hostDNS{}
	for _, t := range tags { // the tags of a tracking domain have the same DNS, but each is updated on its own
		dns.Connected = dns.Connected || t.Connected
		if t.DNS != nil && dns.CheckedAt.IsZero() {
			dns.Detail, dns.CheckedAt = t.DNS.Detail, t.DNS.CheckedAt
		}
	}
	return dns
}
