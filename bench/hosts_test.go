package bench

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"log/slog"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddyserver/certmagic"
	"github.com/valyala/fasthttp"
	"golang.org/x/sys/unix"

	"mtagd/edge"
	"mtagd/edge/tag"
	"mtagd/store"
	"mtagd/tlsmgr/certs"
)

// manyHosts is the number of hosts with certificates in one process.
const manyHosts = 10_000

// handshakesMeasured is the number of handshakes in each measurement.
const handshakesMeasured = 5000

// absentCA is never asked: every certificate is on disk and far from expiry.
const absentCA = "https://127.0.0.1:1/dir"

// BenchmarkManyHosts starts a server with 10,000 tag hosts that have certificates. It measures:
//
//   - how long it takes until all certificates are in memory, and how much memory a host takes
//   - how long a handshake takes
//   - how long it takes while a flood of unknown names arrives
//
// The clients run in the same process, so the processor time of a handshake is that of both sides.
//
//	go test -run '^$' -bench ManyHosts -benchtime 1x ./bench
func BenchmarkManyHosts(b *testing.B) {
	dir := b.TempDir()
	hosts := writeCertificates(b, dir, manyHosts)
	engine := &directoryOnly{directory: store.NewDirectory()}
	for i, host := range hosts {
		engine.directory.SetTag(store.Tag{
			ID: store.TagID(fmt.Sprint("ss_", i)), Type: store.ServerSide, Host: host, Verified: true, Connected: true,
		})
	}
	log := slog.New(slog.DiscardHandler)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}

	before := memory()
	certificates := certs.New(certs.Config{
		Dir: dir, Hosts: store.NewHosts(engine.directory), CA: absentCA, Log: log,
		CheckDNS: func(context.Context, string) store.DNSFinding { return store.DNSFinding{Verdict: store.DNSCorrect} },
	})
	defer certificates.Stop()
	server, err := edge.New(edge.Config{
		Config:   tag.Config{Engine: engine, ClientTagHost: "tags.test", Log: log, Now: time.Now},
		BaseHost: "api.test", PartnerAPI: func(*fasthttp.RequestCtx) {}, TLS: certificates.TLSConfig(),
	})
	if err != nil {
		b.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- server.ServeTLS(listener) }()
	defer func() {
		if err := server.Shutdown(context.Background()); err != nil {
			b.Error(err)
		}
		if err := <-served; err != nil {
			b.Error(err)
		}
	}()

	began := time.Now()
	certificates.Start()
	first := shakeHands(b, listener.Addr().String(), hosts[len(hosts)-1])
	for _, host := range hosts {
		for certificates.Certificate(host).Status != store.CertificateValid {
			time.Sleep(time.Millisecond)
		}
	}
	loaded := time.Since(began)
	perHost := (memory() - before) / manyHosts

	quiet := measure(b, listener.Addr().String(), hosts)
	flood, stop := startFlood(listener.Addr().String())
	flooded := measure(b, listener.Addr().String(), hosts)
	refused := stop()

	b.ReportMetric(0, "ns/op") // meaningless here
	b.ReportMetric(float64(perHost), "B/host")
	b.ReportMetric(float64(loaded.Milliseconds()), "load-ms")
	b.ReportMetric(float64(first.Microseconds()), "first-µs")
	b.ReportMetric(quiet.rate, "handshakes/s")
	b.ReportMetric(quiet.cpu, "cpu-µs/handshake")
	b.ReportMetric(quiet.p50, "p50-µs")
	b.ReportMetric(quiet.p99, "p99-µs")
	b.ReportMetric(float64(refused)/time.Since(flood).Seconds(), "flood/s")
	b.ReportMetric(flooded.p50, "flooded-p50-µs")
	b.ReportMetric(flooded.p99, "flooded-p99-µs")
}

// handshakes has a rate per second, and times in microseconds; cpu is the processor time of both sides.
type handshakes struct{ rate, p50, p99, cpu float64 }

// measure makes handshakes from two clients, each with another host than the one before.
func measure(b *testing.B, address string, hosts []string) handshakes {
	const n = handshakesMeasured
	times := make([]float64, n)
	var next atomic.Int64
	var clients sync.WaitGroup
	began, cpu := time.Now(), processorTime(b)
	for range 2 {
		clients.Go(func() {
			for i := next.Add(1) - 1; i < int64(n); i = next.Add(1) - 1 {
				times[i] = float64(shakeHands(b, address, hosts[i*7919%int64(len(hosts))]).Microseconds())
			}
		})
	}
	clients.Wait()
	rate := float64(n) / time.Since(began).Seconds()
	cpu = processorTime(b) - cpu
	slices.Sort(times)
	return handshakes{rate, times[n/2], times[n*99/100], float64(cpu.Microseconds()) / n}
}

func processorTime(b *testing.B) time.Duration {
	var used unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &used); err != nil {
		b.Fatal(err)
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}

func shakeHands(b *testing.B, address, host string) time.Duration {
	began := time.Now()
	c, err := tls.Dial("tcp", address, &tls.Config{ServerName: host, InsecureSkipVerify: true, NextProtos: []string{"http/1.1"}})
	if err != nil {
		b.Error(host, err)
		return 0
	}
	took := time.Since(began)
	if err := c.Close(); err != nil {
		b.Error(err)
	}
	return took
}

// floodRate is the number of handshakes for unknown names per second. Each costs the client far more than the server's
// refusal costs the server: at higher rates the client alone would keep the machine busy.
const floodRate = 2000

// startFlood sends handshakes for unknown names until stop is called. stop returns their number. All of them send the
// same recorded ClientHello, so that the client need not compute one.
func startFlood(address string) (began time.Time, stop func() int64) {
	hello := recordHello("nobody.example.org")
	done := make(chan struct{})
	var count atomic.Int64
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			tick := time.NewTicker(4 * time.Second / floodRate)
			defer tick.Stop()
			for {
				select {
				case <-done:
					return
				case <-tick.C:
				}
				c, err := net.Dial("tcp", address)
				if err != nil {
					continue
				}
				if _, err := c.Write(hello); err == nil {
					_, _ = c.Read(make([]byte, 64)) // the alert
				}
				_ = c.Close()
				count.Add(1)
			}
		})
	}
	return time.Now(), func() int64 {
		close(done)
		all.Wait()
		return count.Load()
	}
}

// recordHello returns the ClientHello of a handshake.
func recordHello(name string) []byte {
	client, server := net.Pipe()
	go func() {
		_ = tls.Client(client, &tls.Config{ServerName: name}).Handshake() // ends with the pipe
	}()
	hello := make([]byte, 16<<10)
	n, _ := server.Read(hello)
	server.Close()
	return hello[:n]
}

// memory is the heap and stack memory in use, in bytes.
func memory() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapInuse + m.StackInuse
}

// directoryOnly is the part of an engine that handshakes need.
type directoryOnly struct {
	store.Engine
	directory *store.Directory
}

func (e *directoryOnly) Directory() *store.Directory { return e.directory }

// writeCertificates fills a directory with certificates, in the files in which tlsmgr keeps them.
func writeCertificates(b *testing.B, dir string, n int) (hosts []string) {
	must := func(err error) {
		if err != nil {
			b.Fatal(err)
		}
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(err)
	ca := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "Benchmark CA"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now(), NotAfter: time.Now().AddDate(0, 3, 0), KeyUsage: x509.KeyUsageCertSign,
	}
	caDER, err := x509.CreateCertificate(rand.Reader, ca, ca, key.Public(), key)
	must(err)
	issuer := (&certmagic.ACMEIssuer{CA: absentCA}).IssuerKey()
	for i := range n {
		host := fmt.Sprintf("mtag-%04d.shop-%d.example.com", i%10000, i)
		hosts = append(hosts, host)
		leafKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		must(err)
		leaf := &x509.Certificate{
			SerialNumber: big.NewInt(int64(i + 2)), DNSNames: []string{host},
			NotBefore: time.Now(), NotAfter: time.Now().AddDate(0, 3, 0), KeyUsage: x509.KeyUsageDigitalSignature,
		}
		der, err := x509.CreateCertificate(rand.Reader, leaf, ca, leafKey.Public(), key)
		must(err)
		keyDER, err := x509.MarshalECPrivateKey(leafKey)
		must(err)
		meta, err := json.Marshal(certmagic.CertificateResource{SANs: []string{host}})
		must(err)
		chain := slices.Concat(pemBlock("CERTIFICATE", der), pemBlock("CERTIFICATE", caDER))
		for name, content := range map[string][]byte{
			certmagic.StorageKeys.SiteCert(issuer, host):       chain,
			certmagic.StorageKeys.SitePrivateKey(issuer, host): pemBlock("EC PRIVATE KEY", keyDER),
			certmagic.StorageKeys.SiteMeta(issuer, host):       meta,
		} {
			path := filepath.Join(dir, filepath.FromSlash(name))
			must(os.MkdirAll(filepath.Dir(path), 0o700))
			must(os.WriteFile(path, content, 0o600))
		}
	}
	return hosts
}

func pemBlock(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}
