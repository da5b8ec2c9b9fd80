package store

import (
	"slices"
	"time"
)

// Hosts says which host names may have a TLS certificate. These are the service's own hosts, the hosts of active
// server-side tags, and the partners' tracking domains.
//
// Each call reads the directory, and so sees its latest changes. No method does I/O. Names are in lower case, without
// a port.
type Hosts struct {
	own       []string
	directory *Directory
}

// NewHosts returns the hosts of a service: its own (the base host and the client tag host, which may be the same) and
// those in a directory.
func NewHosts(directory *Directory, own ...string) Hosts {
	h := Hosts{directory: directory}
	for _, host := range own {
		if !h.IsOwn(host) {
			h.own = append(h.own, host)
		}
	}
	return h
}

// MayHaveCertificate reports whether a name may have a certificate. Every handshake calls it, so it does not allocate.
func (h Hosts) MayHaveCertificate(host string) bool {
	if h.IsOwn(host) {
		return true
	}
	d := h.directory
	d.mu.RLock()
	defer d.mu.RUnlock()
	known, _ := d.hosts.get(host)
	return d.mayHaveCertificate(host, known)
}

// IsOwn reports whether a host is one of the service's own. Their DNS is not checked: the operator configures it.
func (h Hosts) IsOwn(host string) bool { return slices.Contains(h.own, host) }

// Partner returns the partner that a host belongs to. It is empty for the service's own hosts, and for unknown ones.
func (h Hosts) Partner(host string) PartnerID {
	if h.IsOwn(host) {
		return ""
	}
	d := h.directory
	d.mu.RLock()
	defer d.mu.RUnlock()
	known, _ := d.hosts.get(host)
	if len(known.tags) > 0 {
		return d.tag(known.tags[0]).Partner
	}
	return known.reserved
}

// All returns every host that may have a certificate: the service's own first, then OfTags.
func (h Hosts) All() []string { return slices.Concat(h.own, h.OfTags()) }

// OfTags returns the hosts that may have a certificate and are not the service's own, in no order.
func (h Hosts) OfTags() []string {
	d := h.directory
	d.mu.RLock()
	defer d.mu.RUnlock()
	var hosts []string
	for host, known := range d.hosts.all {
		if !h.IsOwn(host) && d.mayHaveCertificate(host, known) {
			hosts = append(hosts, host)
		}
	}
	return hosts
}

// mayHaveCertificate is MayHaveCertificate for a host that is not the service's own. The caller holds d.mu.
func (d *Directory) mayHaveCertificate(host string, known hostTags) bool {
	switch {
	case host == "": // stands for the shared host of client-side tags
		return false
	case known.reserved != "": // a tracking domain
		return true
	default: // a host that is not reserved has at most one tag
		return len(known.tags) > 0 && d.tag(known.tags[0]).Status() == Active
	}
}

// CertificateStatus is the state of a host's TLS certificate.
type CertificateStatus string

// The states of a certificate.
const (
	CertificateNone    CertificateStatus = "none"    // not ordered: DNS does not lead here
	CertificatePending CertificateStatus = "pending" // being loaded or ordered
	CertificateValid   CertificateStatus = "valid"   // handshakes succeed
	CertificateFailed  CertificateStatus = "failed"  // none is valid, as the last order or renewal failed; it is retried
)

// Certificate is what is known about a host's TLS certificate.
type Certificate struct {
	Status   CertificateStatus `json:"status"`
	Detail   string            `json:"detail"`   // for the merchant: why the last order or renewal failed, and why an order waits; may be empty
	NotAfter time.Time         `json:"notAfter"` // when the certificate expires; zero when there is none
	NextTry  time.Time         `json:"nextTry"`  // when a failed order is retried; zero when it is not waiting for that
}
