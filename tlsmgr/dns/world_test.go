package dns

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	miekg "github.com/miekg/dns"
	"github.com/rogpeppe/go-internal/txtar"

	"mtagd/store"
	"mtagd/tlsmgr/dnstest"
)

// A world is the whole DNS of one test case: the servers of each zone on loopback addresses, and resolvers that ask
// these servers. Each case is a file in testdata/worlds. It begins with a sentence about the case, followed by:
//
//	want VERDICT CODE   what Verify should find
//	says TEXT           a part of the finding's sentence
//	ca NAME             the CA that CAA records must allow
//	public              name servers at private addresses must not be asked
//
// The sections are:
//
//	-- ADDRESS[,ADDRESS] ZONE [BEHAVIOUR] --   a zone's records, and the servers that serve it
//	-- resolver [BEHAVIOUR] --                 a resolver, and the records in its cache
//
// Behaviours of servers: silent, servfail, refuse, upward (refers to the root servers), big (answers do not fit into
// UDP, and TCP is closed), small (answers do not fit into UDP, but TCP is open), old (EDNS is a format error).
// Behaviours of resolvers: bogus=ZONE (its signatures are broken), absent=NAME (cached as not existing),
// ignores=TYPE.
//
// A section of common.txtar applies to each world that has no section for the same address and zone. A world without a
// resolver gets one that has no special behaviour.
type world struct {
	sentence string
	verdict  store.DNSVerdict
	code     string
	says     []string
	ca       string
	public   bool

	zones     []*worldZone
	resolvers []*worldResolver
	port      string
}

// worldZone is a zone as one server serves it.
type worldZone struct {
	address, name, behaviour string
	records                  []miekg.RR
}

type worldResolver struct {
	*world
	address string
	cache   []miekg.RR
	bogus   string // zone
	absent  string // name
	ignores uint16 // type
}

func readWorld(t *testing.T, name string) *world {
	t.Helper()
	w := &world{}
	w.read(t, filepath.Join("testdata", "worlds", name))
	w.read(t, filepath.Join("testdata", "common.txtar"))
	if w.resolvers == nil {
		w.resolvers = []*worldResolver{{world: w}}
	}
	return w
}

func (w *world) read(t *testing.T, path string) {
	t.Helper()
	archive, err := txtar.ParseFile(path)
	if err != nil {
		t.Fatal(err)
	}
	sentence, rest, _ := strings.Cut(string(archive.Comment), "\n\n")
	if w.sentence == "" {
		w.sentence = strings.Join(strings.Fields(sentence), " ")
	}
	for line := range strings.Lines(rest) {
		word, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		switch word {
		case "":
		case "want":
			verdict, code, _ := strings.Cut(value, " ")
			w.verdict, w.code = store.DNSVerdict(verdict), code
		case "says":
			w.says = append(w.says, value)
		case "ca":
			w.ca = value
		case "public":
			w.public = true
		default:
			t.Fatalf("%s: %q", path, line)
		}
	}
	given := len(w.zones)
	for _, section := range archive.Files {
		words := strings.Fields(section.Name)
		if words[0] == "resolver" {
			r := &worldResolver{world: w, cache: parseZone(t, path, ".", section.Data)}
			for _, behaviour := range words[1:] {
				key, value, _ := strings.Cut(behaviour, "=")
				switch key {
				case "bogus":
					r.bogus = value
				case "absent":
					r.absent = value
				case "ignores":
					r.ignores = miekg.StringToType[value]
				default:
					t.Fatalf("%s: %s", path, section.Name)
				}
			}
			w.resolvers = append(w.resolvers, r)
			continue
		}
		zone := miekg.Fqdn(words[1])
		records := parseZone(t, path, zone, section.Data)
		for address := range strings.SplitSeq(words[0], ",") {
			if slices.ContainsFunc(w.zones[:given], func(z *worldZone) bool { return z.address == address && z.name == zone }) {
				continue
			}
			w.zones = append(w.zones, &worldZone{address, zone, strings.Join(words[2:], " "), records})
		}
	}
}

func parseZone(t *testing.T, path, origin string, text []byte) []miekg.RR {
	t.Helper()
	var records []miekg.RR
	parser := miekg.NewZoneParser(strings.NewReader("$TTL 300\n"+string(text)), origin, path)
	for rr, ok := parser.Next(); ok; rr, ok = parser.Next() {
		records = append(records, rr)
	}
	if err := parser.Err(); err != nil {
		t.Fatal(err)
	}
	return records
}

// start serves the world until the test ends.
func (w *world) start(t *testing.T) {
	t.Helper()
	addresses := map[string]bool{}
	for _, z := range w.zones {
		addresses[z.address] = true
	}
	handlers := map[string]miekg.HandlerFunc{}
	for address := range addresses {
		handlers[address] = func(rw miekg.ResponseWriter, q *miekg.Msg) { w.serve(address, rw, q) }
	}
	for i, r := range w.resolvers {
		r.address = fmt.Sprintf("127.0.1.%d", i+1)
		handlers[r.address] = r.serve
	}
	for range 50 {
		if w.listen(t, handlers) {
			return
		}
	}
	t.Fatal("no port is free on all addresses")
}

// listen starts a server at each address, all on one port. It reports whether it has found such a port.
func (w *world) listen(t *testing.T, handlers map[string]miekg.HandlerFunc) bool {
	t.Helper()
	var servers []*dnstest.Server
	stop := func() {
		for _, s := range servers {
			if err := s.Stop(); err != nil {
				t.Error(err)
			}
		}
	}
	w.port = "0"
	listening := make(chan struct{}) // handlers wait for it: then w.port no longer changes
	defer close(listening)
	for address, handler := range handlers {
		waiting := miekg.HandlerFunc(func(rw miekg.ResponseWriter, question *miekg.Msg) {
			<-listening
			handler(rw, question)
		})
		s, err := dnstest.Start(net.JoinHostPort(address, w.port), waiting)
		if err != nil {
			stop()
			return false
		}
		servers = append(servers, s)
		_, w.port, _ = net.SplitHostPort(s.Address)
	}
	t.Cleanup(stop)
	return true
}

// serve answers as the server at an address, for all zones that it serves.
func (w *world) serve(address string, rw miekg.ResponseWriter, question *miekg.Msg) {
	if question.RecursionDesired {
		return // a zone's own name servers must be asked without recursion
	}
	answer := new(miekg.Msg).SetReply(question)
	name := miekg.CanonicalName(question.Question[0].Name)
	z := w.zoneAt(address, name)
	behaviour := "refuse"
	if z != nil {
		behaviour = z.behaviour
	}
	switch behaviour {
	case "":
		z.answer(answer, name, question.Question[0].Qtype)
	case "silent":
		return
	case "servfail":
		answer.Rcode = miekg.RcodeServerFailure
	case "refuse":
		answer.Rcode = miekg.RcodeRefused
	case "upward":
		answer.Ns = []miekg.RR{rr(". NS a.root-servers.net.")}
	case "big", "small":
		if rw.LocalAddr().Network() != "tcp" {
			answer.Truncated = true
		} else if behaviour == "big" {
			rw.Close()
			return
		} else {
			z.answer(answer, name, question.Question[0].Qtype)
		}
	case "old":
		if question.IsEdns0() != nil {
			answer.Rcode = miekg.RcodeFormatError
		} else {
			z.answer(answer, name, question.Question[0].Qtype)
		}
	default:
		panic(behaviour)
	}
	rw.WriteMsg(answer) // fails when the client has gone
}

// zoneAt is the closest zone to a name that the server at an address serves.
func (w *world) zoneAt(address, name string) *worldZone {
	var closest *worldZone
	for _, z := range w.zones {
		if z.address == address && miekg.IsSubDomain(z.name, name) && (closest == nil || len(z.name) > len(closest.name)) {
			closest = z
		}
	}
	return closest
}

// answer fills in an authoritative server's answer: records, a referral, or the SOA.
func (z *worldZone) answer(m *miekg.Msg, name string, qtype uint16) {
	for _, r := range z.records {
		if cut := r.Header().Name; r.Header().Rrtype == miekg.TypeNS && cut != z.name && miekg.IsSubDomain(cut, name) {
			m.Ns = append(m.Ns, r)
		}
	}
	if m.Ns != nil {
		for _, r := range m.Ns {
			m.Extra = append(m.Extra, at(z.records, r.(*miekg.NS).Ns, miekg.TypeA)...)
		}
		return
	}
	m.Authoritative = true
	m.Answer = at(z.records, name, qtype)
	if m.Answer == nil {
		m.Answer = at(z.records, name, miekg.TypeCNAME)
	}
	if m.Answer == nil {
		m.Ns = []miekg.RR{rr(z.name + " SOA ns. admin. 1 3600 600 86400 60")}
		if !slices.ContainsFunc(z.records, func(r miekg.RR) bool { return miekg.IsSubDomain(name, r.Header().Name) }) && name != z.name {
			m.Rcode = miekg.RcodeNameError
		}
	}
}

func at(records []miekg.RR, name string, qtype uint16) []miekg.RR {
	var found []miekg.RR
	for _, r := range records {
		if strings.EqualFold(r.Header().Name, name) && r.Header().Rrtype == qtype {
			found = append(found, r)
		}
	}
	return found
}

func rr(text string) miekg.RR {
	r, err := miekg.NewRR(text)
	if err != nil {
		panic(err)
	}
	return r
}

func (r *worldResolver) serve(rw miekg.ResponseWriter, question *miekg.Msg) {
	name, qtype := miekg.CanonicalName(question.Question[0].Name), question.Question[0].Qtype
	if qtype == r.ignores && qtype != 0 {
		return
	}
	answer := r.resolve(question, name, qtype, 0)
	answer.RecursionAvailable = true
	if r.bogus != "" && miekg.IsSubDomain(r.bogus, name) && !question.CheckingDisabled {
		answer = new(miekg.Msg).SetRcode(question, miekg.RcodeServerFailure)
	}
	rw.WriteMsg(answer) // fails when the client has gone
}

// resolve answers a question from the cache, or follows the delegations down from the top-level zones. These are all
// at one address.
func (r *worldResolver) resolve(question *miekg.Msg, name string, qtype uint16, depth int) *miekg.Msg {
	answer := new(miekg.Msg).SetReply(question)
	if name == r.absent {
		answer.Rcode = miekg.RcodeNameError
		return answer
	}
	answer.Answer = at(r.cache, name, qtype)
	if answer.Answer == nil {
		answer.Answer = at(r.cache, name, miekg.TypeCNAME)
	}
	servers := []string{"127.0.0.2"}
	for steps := 0; answer.Answer == nil; steps++ {
		m := r.askFirst(servers, name, qtype)
		if m == nil || steps == 8 || depth == 10 {
			return new(miekg.Msg).SetRcode(question, miekg.RcodeServerFailure)
		}
		if m.Authoritative {
			answer.Rcode, answer.Answer, answer.Ns = m.Rcode, m.Answer, m.Ns
			break
		}
		servers = nil
		for _, ns := range m.Ns {
			host := ns.(*miekg.NS).Ns
			addresses := at(m.Extra, host, miekg.TypeA)
			if addresses == nil {
				addresses = r.resolve(question, host, miekg.TypeA, depth+1).Answer
			}
			for _, a := range addresses {
				if a, ok := a.(*miekg.A); ok {
					servers = append(servers, a.A.String())
				}
			}
		}
	}
	if qtype != miekg.TypeCNAME && len(answer.Answer) == 1 {
		if alias, ok := answer.Answer[0].(*miekg.CNAME); ok {
			rest := r.resolve(question, miekg.CanonicalName(alias.Target), qtype, depth+1)
			rest.Answer = slices.Insert(rest.Answer, 0, miekg.RR(alias))
			return rest
		}
	}
	return answer
}

// askFirst asks the servers in turn, until one has an answer or a referral. It skips silent servers.
func (r *worldResolver) askFirst(servers []string, name string, qtype uint16) *miekg.Msg {
	for _, server := range servers {
		if z := r.zoneAt(server, name); z != nil && z.behaviour == "silent" {
			continue
		}
		question := new(miekg.Msg).SetQuestion(name, qtype)
		question.RecursionDesired = false
		for _, network := range []string{"udp", "tcp"} {
			client := miekg.Client{Net: network, Timeout: 2 * time.Second}
			m, _, err := client.Exchange(question, net.JoinHostPort(server, r.port))
			if err == nil && !m.Truncated && (m.Authoritative || len(m.Extra)+len(m.Ns) > 0 && !strings.Contains(m.String(), "root-servers")) {
				return m
			}
			if err != nil || !m.Truncated {
				break
			}
		}
	}
	return nil
}

func TestWorlds(t *testing.T) {
	files, err := os.ReadDir(filepath.Join("testdata", "worlds"))
	if err != nil {
		t.Fatal(err)
	}
	sentences := map[string]bool{}
	for _, file := range files {
		w := readWorld(t, file.Name())
		if w.code == "" || sentences[w.sentence] {
			t.Errorf("%s: has the sentence of another file, or no \"want\" line", file.Name())
		}
		sentences[w.sentence] = true
		t.Run(strings.TrimSuffix(file.Name(), ".txtar"), func(t *testing.T) {
			t.Parallel()
			w.start(t)
			expect(t, w.verifier(t).Verify(t.Context(), testHost), w.verdict, w.code, w.says...)
			if t.Failed() {
				t.Log(w.sentence)
			}
		})
	}
}

func (w *world) verifier(t *testing.T) *Verifier {
	t.Helper()
	var resolvers []string
	for _, r := range w.resolvers {
		resolvers = append(resolvers, net.JoinHostPort(r.address, w.port))
	}
	v := newVerifier(t, resolvers...)
	v.AllowPrivate = !w.public
	if w.ca != "" {
		v.CAAIdentities = func(context.Context) []string { return []string{w.ca} }
	}
	if _, err := fmt.Sscan(w.port, &v.Port); err != nil {
		t.Fatal(err)
	}
	for i := range v.resolvers {
		v.resolvers[i].timeout = 4 * time.Second // they ask the world's servers first
		v.resolvers[i].name = fmt.Sprintf("resolver %d", i+1)
	}
	return v
}
