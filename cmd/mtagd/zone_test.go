package main

import (
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"

	"github.com/miekg/dns"
)

// zone is the DNS of a service under test: a recursive resolver on loopback, with the records that a test sets. For the
// name server of a zone, a test starts another one at another address.
type zone struct {
	address string
	servers [2]*dns.Server

	mu      sync.Mutex
	records map[string][]dns.RR
	failing map[string]string // how a name fails: servfail, bogus, refuse or silent
}

// startZone listens on one port that is free for both UDP and TCP.
func startZone() (*zone, error) {
	z, err := startNameServer("127.0.0.1:0")
	for range 20 {
		if err == nil {
			return z, z.set(cnameTarget, "A", "192.0.2.1")
		}
		z, err = startNameServer("127.0.0.1:0")
	}
	return nil, err
}

func startNameServer(address string) (*zone, error) {
	udp, tcp, err := listenBoth(address)
	if err != nil {
		return nil, err
	}
	z := &zone{address: udp.LocalAddr().String(), records: map[string][]dns.RR{}, failing: map[string]string{}}
	z.servers = [2]*dns.Server{{PacketConn: udp, Handler: z}, {Listener: tcp, Handler: z}}
	for _, server := range z.servers {
		go server.ActivateAndServe() // ends with stop
	}
	return z, nil
}

func listenBoth(address string) (net.PacketConn, net.Listener, error) {
	udp, err := net.ListenPacket("udp", address)
	if err != nil {
		return nil, nil, err
	}
	tcp, err := net.Listen("tcp", udp.LocalAddr().String())
	if err != nil {
		return nil, nil, errors.Join(err, udp.Close())
	}
	return udp, tcp, nil
}

func (z *zone) stop() {
	for _, server := range z.servers {
		server.Shutdown() // fails only if it was not running yet
	}
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
