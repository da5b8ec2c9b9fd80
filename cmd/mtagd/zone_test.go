package main

import (
	"fmt"
	"strings"
	"sync"

	"github.com/miekg/dns"

	"mtagd/tlsmgr/dnstest"
)

// zone is the DNS of a service under test: a recursive resolver on loopback, with the records that a test sets. For the
// name server of a zone, a test starts another one at another address.
type zone struct {
	address string
	server  *dnstest.Server

	mu      sync.Mutex
	records map[string][]dns.RR
	failing map[string]string // how a name fails: servfail, bogus, refuse or silent
}

func startZone() (*zone, error) {
	z, err := startNameServer("127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	return z, z.set(cnameTarget, "A", "192.0.2.1")
}

func startNameServer(address string) (*zone, error) {
	z := &zone{records: map[string][]dns.RR{}, failing: map[string]string{}}
	var err error
	if z.server, err = dnstest.Start(address, z); err != nil {
		return nil, err
	}
	z.address = z.server.Address
	return z, nil
}

func (z *zone) stop() {
	z.server.Stop() // if this fails, the server ends with the tests
}

// set sets the one record of a name, or makes the name fail, or removes it. With "also" before it, the record is added.
func (z *zone) set(name string, record ...string) error {
	name = dns.CanonicalName(name)
	z.mu.Lock()
	defer z.mu.Unlock()
	if len(record) > 0 && record[0] == "also" {
		record = record[1:]
	} else {
		delete(z.records, name)
		delete(z.failing, name)
	}
	switch {
	case len(record) == 0:
		return nil
	case len(record) == 1:
		z.failing[name] = record[0]
		return nil
	}
	rr, err := dns.NewRR(fmt.Sprintf("%s 60 IN %s", name, strings.Join(record, " ")))
	if err != nil {
		return err
	}
	z.records[name] = append(z.records[name], rr)
	return nil
}

// ServeDNS answers like a recursive resolver, with the whole chain of CNAME records. If no recursion is desired, the
// answer is authoritative.
func (z *zone) ServeDNS(w dns.ResponseWriter, query *dns.Msg) {
	reply := new(dns.Msg).SetReply(query)
	reply.RecursionAvailable = query.RecursionDesired
	reply.Authoritative = !query.RecursionDesired
	z.mu.Lock()
	question := query.Question[0]
	name := dns.CanonicalName(question.Name)
	for range 8 {
		wrong := z.failing[name]
		if wrong == "silent" {
			z.mu.Unlock()
			return
		}
		if wrong == "refuse" {
			reply.Rcode = dns.RcodeRefused
			break
		}
		if wrong == "servfail" || wrong == "bogus" && !query.CheckingDisabled {
			reply.Rcode = dns.RcodeServerFailure
			break
		}
		records, exists := z.records[name]
		if !exists {
			reply.Rcode = dns.RcodeNameError
			break
		}
		next := ""
		for _, rr := range records {
			if rr.Header().Rrtype == question.Qtype {
				reply.Answer = append(reply.Answer, rr)
			} else if alias, ok := rr.(*dns.CNAME); ok {
				reply.Answer = append(reply.Answer, rr)
				next = dns.CanonicalName(alias.Target)
			}
		}
		if next == "" {
			break
		}
		name = next
	}
	z.mu.Unlock()
	w.WriteMsg(reply) // if the answer is lost, the client times out
}
