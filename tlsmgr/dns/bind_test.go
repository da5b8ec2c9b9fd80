package dns

import (
	"bufio"
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	miekg "github.com/miekg/dns"

	"mtagd/store"
	"mtagd/store/testenv"
)

// TestAgainstBIND verifies hosts whose servers are BIND: one process serves signed zones, another resolves and checks
// signatures. The other tests have servers of their own; this one shows that real servers behave like those.
func TestAgainstBIND(t *testing.T) {
	b := startBIND(t)
	cases := []struct {
		sentence, host string
		verdict        store.DNSVerdict
		code, says     string
	}{
		{"a signed record is correct", "mtag-ab12.shop.com", store.DNSCorrect, "ok_caa_forbids", "the CAA records at shop.com forbid letsencrypt.org"},
		{"a record with an expired signature is pending", "mtag-ab12.expired.com", store.DNSPending, "dnssec_bogus", "expired.com"},
		{"a name that does not exist is wrong", "mtag-cd34.shop.com", store.DNSWrong, "no_record", "according to shop.com's name servers"},
		{"a name with records of other types only is wrong", "text.shop.com", store.DNSWrong, "no_record", "text.shop.com"},
		{"a record elsewhere is wrong", "old.shop.com", store.DNSWrong, "wrong_target", "points to elsewhere.net"},
		{"a flattened record is correct", "flat.shop.com", store.DNSCorrect, "ok_caa_forbids", "has the addresses of edge.example.com"},
		{"a zone that cannot be loaded is pending", "mtag-ab12.broken.com", store.DNSPending, "servfail", "mtag-ab12.broken.com"},
		{"a zone that the server does not have is pending", "mtag-ab12.lame.com", store.DNSPending, "lame_delegation", "lame.com is delegated to ns.lame.com"},
		{"a domain that nobody registered is wrong", "mtag-ab12.nobody.com", store.DNSWrong, "no_domain", "nobody.com does not exist"},
	}
	for _, c := range cases {
		t.Run(c.sentence, func(t *testing.T) {
			expect(t, b.verifier(t).Verify(t.Context(), c.host), c.verdict, c.code, c.says)
		})
	}
}

// bind is two BIND processes on loopback: the name server of all zones in testdata/bind, and a resolver.
type bind struct {
	dir          string
	port         int // of the name server; the resolver asks other servers there
	resolverPort int
}

func startBIND(t *testing.T) *bind {
	t.Helper()
	b := &bind{dir: t.TempDir()}
	b.port, b.resolverPort = freePorts(t)
	if err := os.CopyFS(b.dir, os.DirFS(filepath.Join("testdata", "bind"))); err != nil {
		t.Fatal(err)
	}
	anchors := b.sign(t, "shop.com") + b.sign(t, "expired.com", "-s", "20200101000000", "-e", "20200201000000")

	const common = `
options {
	directory "%s"; port %d; listen-on port %d { 127.0.0.1; }; listen-on-v6 { none; };
	pid-file none; session-keyfile none; empty-zones-enable no; notify no; %s
};
controls { };
`
	server := fmt.Sprintf(common, b.dir, b.port, b.port, "recursion no; dnssec-validation no;")
	server += "zone \".\" { type primary; file \"root.zone\"; };\n"
	for _, zone := range []string{"com", "net", "example.com", "elsewhere.net", "broken.com"} {
		server += fmt.Sprintf("zone %q { type primary; file %q; };\n", zone, zone+".zone")
	}
	for _, zone := range []string{"shop.com", "expired.com"} {
		server += fmt.Sprintf("zone %q { type primary; file %q; };\n", zone, zone+".zone.signed")
	}
	b.run(t, "server.conf", server)

	resolver := fmt.Sprintf(common, b.dir, b.port, b.resolverPort,
		`recursion yes; allow-recursion { any; }; dnssec-validation yes; servfail-ttl 0;`)
	resolver += "zone \".\" { type hint; file \"hints.zone\"; };\n"
	b.run(t, "resolver.conf", resolver+"trust-anchors {\n"+anchors+"};\n")
	b.warm(t)
	return b
}

// warm asks the resolver until it knows the addresses of the signed zone's name server. Sometimes the first
// questions about a signed zone get SERVFAIL, and Verify would then ask the zone above.
func (b *bind) warm(t *testing.T) {
	t.Helper()
	giveUp := time.Now().Add(time.Minute)
	for _, kind := range []uint16{miekg.TypeA, miekg.TypeAAAA} {
		question := new(miekg.Msg).SetQuestion("ns.shop.com.", kind)
		for {
			answer, err := miekg.Exchange(question, fmt.Sprintf("127.0.0.1:%d", b.resolverPort))
			if err == nil && answer.Rcode == miekg.RcodeSuccess {
				break
			}
			if time.Now().After(giveUp) {
				t.Fatalf("the resolver does not answer: %v, %v", answer, err)
			}
		}
	}
}

// sign signs a zone file and returns its trust anchor.
func (b *bind) sign(t *testing.T, zone string, flags ...string) string {
	t.Helper()
	b.command(t, "dnssec-keygen", "-q", "-a", "ECDSAP256SHA256", "-f", "KSK", zone)
	b.command(t, "dnssec-signzone", append(flags, "-P", "-z", "-S", "-o", zone, zone+".zone")...)
	ds, err := os.ReadFile(filepath.Join(b.dir, "dsset-"+zone+"."))
	if err != nil {
		t.Fatal(err)
	}
	fields := strings.Fields(string(ds)) // shop.com. IN DS TAG ALGORITHM DIGEST-TYPE DIGEST...
	return fmt.Sprintf("%q static-ds %s %s %s \"%s\";\n", zone, fields[3], fields[4], fields[5], strings.Join(fields[6:], ""))
}

func (b *bind) command(t *testing.T, program string, args ...string) {
	t.Helper()
	cmd := exec.Command(testenv.Program(t, program), args...)
	cmd.Dir = b.dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v: %s", program, err, out)
	}
}

// run starts a named process and waits until it is running. It ends with the test.
func (b *bind) run(t *testing.T, name, config string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(b.dir, name), []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(testenv.Program(t, "named"), "-g", "-n", "1", "-c", name)
	cmd.Dir = b.dir
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	running := make(chan bool, 1)
	ended := make(chan struct{})
	var log strings.Builder
	go func() {
		defer close(ended)
		isRunning := regexp.MustCompile(` running$`)
		for lines := bufio.NewScanner(stderr); lines.Scan(); {
			fmt.Fprintln(&log, lines.Text())
			if isRunning.MatchString(lines.Text()) {
				running <- true
			}
		}
	}()
	t.Cleanup(func() {
		if err := cmd.Process.Kill(); err != nil {
			t.Error(err)
		}
		<-ended
		cmd.Wait() // killed
		if t.Failed() {
			t.Logf("%s: %s", name, log.String())
		}
	})
	select {
	case <-running:
	case <-ended:
		t.Fatalf("named ended: %s", log.String())
	case <-time.After(time.Minute):
		t.Fatal("named does not start")
	}
}

func (b *bind) verifier(t *testing.T) *Verifier {
	v := newVerifier(t, fmt.Sprintf("127.0.0.1:%d", b.resolverPort))
	v.Port, v.AllowPrivate = b.port, true
	v.CAAIdentities = func(context.Context) []string { return []string{"letsencrypt.org"} }
	v.resolvers[0].timeout = 3 * time.Second
	return v
}

// freePorts returns two unused ports. The kernel gives others ports from 32768 on, so none of them takes these meanwhile.
func freePorts(t *testing.T) (int, int) {
	t.Helper()
	var ports []int
	for range 100 {
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", 10_000+rand.IntN(20_000)))
		if err != nil {
			continue
		}
		defer l.Close()
		if ports = append(ports, l.Addr().(*net.TCPAddr).Port); len(ports) == 2 {
			return ports[0], ports[1]
		}
	}
	t.Fatal("no port is free")
	return 0, 0
}
