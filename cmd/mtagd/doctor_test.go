package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/goccy/go-yaml"
	"go.etcd.io/bbolt"

	"mtagd/cmd/mtagd/operator"
	"mtagd/store"
	"mtagd/store/local"
	"mtagd/store/testenv"
)

// installation is a directory with a running server, for mtagd doctor to examine. A new one has no faults.
type installation struct {
	*testing.T
	dir, data, backups string
	config             map[string]any
	zone               *zone
	ready              string // what /readyz says
	metrics            map[string]float64
	refuse             int  // the status of all admin pages; 0: they answer
	hidden             bool // only /readyz answers without a token
	admin              *httptest.Server
	ca                 *httptest.Server
	clock              time.Duration // the CA's clock is this much ahead
	as                 []string      // runs doctor with fewer rights
}

func newInstallation(t *testing.T) *installation {
	t.Helper()
	i := installationIn(t, t.TempDir())
	if err := os.Mkdir(i.data, 0o700); err != nil {
		t.Fatal(err)
	}
	i.run("partner", "add", "--data", i.data, "--name", "Agency")
	i.run("backup", "create", "--data", i.data, i.backups)
	return i
}

// installationIn has the data and the backups that are in a directory.
func installationIn(t *testing.T, dir string) *installation {
	t.Helper()
	z, err := startZone()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(z.stop)
	i := &installation{T: t, dir: dir, data: filepath.Join(dir, "data"), backups: filepath.Join(dir, "backups"), zone: z, ready: "ready\n"}
	for _, host := range []string{baseHost, tagHost, cnameTarget} {
		must(t, i.zone.set(host, "A", "127.0.0.1"))
	}
	now := float64(time.Now().Unix())
	i.metrics = map[string]float64{
		"mtagd_ready": 1, "mtagd_disk_free_bytes{part=\"journal\"}": 1e12, "mtagd_disk_reserve_bytes": 1e9, "process_start_time_seconds": now - 86400,
		"mtagd_journal_last_commit_timestamp_seconds": now, "mtagd_backup_interval_seconds": 3600, "mtagd_backup_last_success_timestamp_seconds": now - 60,
		"mtagd_scrub_last_finished_timestamp_seconds": now - 60, "process_open_fds": 10, "process_max_fds": 1000,
		"mtagd_http_requests_total{code=\"201\",surface=\"tag\"}": 1000, "mtagd_http_requests_total{code=\"503\",surface=\"tag\"}": 1,
		"mtagd_journal_commit_duration_seconds_count": 1000, "mtagd_journal_commit_duration_seconds_bucket{le=\"0.25\"}": 1000,
		"mtagd_certificate_first_expiry_timestamp_seconds": now + 60*86400,
	}
	i.admin = httptest.NewServer(http.HandlerFunc(i.serveAdmin))
	t.Cleanup(i.admin.Close)
	i.ca = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Date", time.Now().Add(i.clock).UTC().Format(http.TimeFormat))
	}))
	t.Cleanup(i.ca.Close)
	root := filepath.Join(dir, "ca.pem")
	i.write(root, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: i.ca.Certificate().Raw})))
	i.config = map[string]any{
		"data": i.data, "base-host": baseHost, "client-tag-host": tagHost, "cname-target": cnameTarget, "dns-resolver": []string{z.address},
		"admin": i.admin.Listener.Addr().String(), "acme-ca": i.ca.URL, "acme-ca-root": root, "backup-to": i.backups,
		"http": freeAddress(t), "https": freeAddress(t),
	}
	return i
}

func (i *installation) serveAdmin(w http.ResponseWriter, r *http.Request) {
	switch {
	case i.refuse != 0 || i.hidden && r.URL.Path != readyPage:
		w.WriteHeader(max(i.refuse, http.StatusUnauthorized))
	case r.URL.Path == readyPage:
		if !strings.HasPrefix(i.ready, "ready") {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		io.WriteString(w, i.ready)
	default:
		for series, value := range i.metrics {
			fmt.Fprintf(w, "%s %v\n", series, value)
		}
	}
}

func (i *installation) run(arguments ...string) {
	i.Helper()
	if err := runMtagd(nil, arguments...); err != nil {
		i.Fatalf("%v: %v", arguments, err)
	}
}

func (i *installation) write(name, text string) {
	i.Helper()
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		i.Fatal(err)
	}
}

// examine runs mtagd doctor.
func (i *installation) examine() (out string, code int) {
	i.Helper()
	text, err := yaml.Marshal(i.config)
	if err != nil {
		i.Fatal(err)
	}
	file := filepath.Join(i.dir, "mtagd.yaml")
	if _, err := os.Stat(file); err != nil {
		i.write(file, string(text))
	}
	if i.as == nil {
		done, err := mtagd(job{Args: []string{"doctor", "--config", file}})
		if err != nil {
			i.Fatal(err)
		}
		return done.Stdout + done.Stderr, done.Code
	}
	command := append(i.as, "mtagd", "doctor", "--config", file)
	answer, err := exec.Command(command[0], command[1:]...).CombinedOutput()
	exit, failed := errors.AsType[*exec.ExitError](err)
	if err != nil && !failed {
		i.Fatal(err)
	}
	if failed {
		code = exit.ExitCode()
	}
	return string(answer), code
}

// stopped has no server.
func (i *installation) stopped() { i.admin.Close() }

// TestDoctor breaks sound installations, each in one way. Doctor finds what is wrong, and nothing else.
func TestDoctor(t *testing.T) {
	old := float64(time.Now().Add(-30 * 24 * time.Hour).Unix())
	const page, ticket = "page    ", "ticket  "
	sound := newInstallation(t)
	for name, c := range map[string]struct {
		spoil  func(i *installation)
		says   string
		others string // what else it may say; a regular expression
	}{
		"nothing is wrong":       {func(*installation) {}, "nothing is wrong", ""},
		"the service is stopped": {func(i *installation) { i.stopped() }, page + "the service does not answer", ""},
		"an unknown key":         {func(i *installation) { i.config["base-hots"] = "x" }, `unknown key "base-hots"`, ""},
		"no host":                {func(i *installation) { delete(i.config, "base-host") }, page + "--base-host: is required", ""},
		"a wrong CA's root":      {func(i *installation) { i.write(filepath.Join(i.dir, "ca.pem"), "x") }, "holds no PEM certificate", ""},
		"no data directory":      {func(i *installation) { must(i, os.RemoveAll(i.data)); i.stopped() }, page + "the data directory " + "", "does not answer"},
		"another program's directory": {func(i *installation) {
			must(i, errors.Join(os.Remove(filepath.Join(i.data, "control.db")), os.Remove(filepath.Join(i.data, "control.copy"))))
		}, "contains other files, but no control.db", ""},
		"data that everybody can read": {func(i *installation) { must(i, os.Chmod(i.data, 0o755)) }, ticket + "everybody on this machine can reach into", ""},
		"data of a newer version":      {func(i *installation) { i.stopped(); setFormat(i) }, "if a newer version wrote it, install that", "does not answer|is not known to this version"},
		"damaged control data": {func(i *installation) {
			i.stopped()
			i.write(filepath.Join(i.data, "control.db"), "x")
			i.write(filepath.Join(i.data, "control.copy"), "x")
		}, "data directory", "does not answer"},
		"data that cannot be written": {func(i *installation) { i.stopped(); i.lock("data") }, page + "the service cannot write its data: ", "does not answer"},
		"backups cannot be written":   {func(i *installation) { i.stopped(); i.lock("backups") }, ticket + "the service cannot write its backups: ", "does not answer"},
		"a lost secret key":           {func(i *installation) { i.stopped(); addDestination(i) }, page + "the secret key file ", "does not answer"},
		"neither admin pages nor a database": {func(i *installation) { // whether the service runs is not known
			i.config["admin"], i.config["store"] = "off", "postgres://127.0.0.1:1/x"
			delete(i.config, "backup-to")
		}, page + "the database of --store: ", "the admin pages are off"},
		"no database": {func(i *installation) {
			i.stopped()
			i.config["store"] = "postgres://127.0.0.1:1/x"
			delete(i.config, "backup-to")
		}, page + "the database of --store: ", "does not answer"},
		"no backups":                  {func(i *installation) { delete(i.config, "backup-to") }, ticket + "there are no backups", ""},
		"backups on a missing disk":   {func(i *installation) { must(i, os.RemoveAll(i.backups)) }, ticket + "the backups in ", ""},
		"no backup yet":               {func(i *installation) { must(i, os.RemoveAll(i.backups)); must(i, os.Mkdir(i.backups, 0o700)) }, ticket + "there is no backup in ", ""},
		"a port that is taken":        {takePort, page + "--http: listen tcp", "does not answer"},
		"a certificate that ends":     {func(i *installation) { i.stopped(); addCertificate(i) }, ticket + "time left of a certificate: 23h", "does not answer"},
		"a host without an address":   {func(i *installation) { must(i, i.zone.set(tagHost)) }, page + "client-tag-host " + tagHost + " has no address", ""},
		"a host that leads elsewhere": {func(i *installation) { must(i, i.zone.set(cnameTarget, "A", "127.0.0.9")) }, ticket + "cname-target " + cnameTarget + " leads to 127.0.0.9", ""},
		"no way to the CA":            {func(i *installation) { i.ca.Close() }, ticket + "the CA does not answer", ""},
		"a wrong clock":               {func(i *installation) { i.clock = time.Hour }, page + "the clock of this machine is wrong by -", ""},
		"a server with other admin pages": {func(i *installation) {
			i.stopped()
			socket, err := operator.Listen(i.data)
			must(i, err)
			i.Cleanup(func() { must(i, socket.Close()) })
		}, page + "a server uses the data directory, but its admin pages do not answer", ""},
		"a wrong admin token":        {func(i *installation) { i.refuse = 401 }, ticket + "the server refuses the admin token", ""},
		"no admin token":             {func(i *installation) { i.hidden, i.ready = true, "not ready\n" }, page + "no events are accepted", "the server shows no metrics"},
		"another program's port":     {func(i *installation) { i.refuse = 404 }, page + "another program answers at", "does not answer"},
		"a secret that all can read": {publish, ticket + "everybody on this machine can read ", ""},
		"no events accepted":         {func(i *installation) { i.ready = "not ready\nMtagdNotReady: the disk is full" }, page + "no events are accepted: the disk is full", ""},
		"some answers fail":          {func(i *installation) { i.ready = "ready\nMtagdDamage: x" }, page + "data is damaged: x", ""},
		"commits hang": {func(i *installation) {
			i.metrics["mtagd_journal_last_commit_timestamp_seconds"], i.metrics["mtagd_journal_queue_bytes"] = old, 1
		}, page + "events wait", ""},
		"slow commits": {func(i *installation) { i.metrics["mtagd_journal_commit_duration_seconds_count"] = 2000 }, ticket + "more than one of a hundred commits", ""},
		"5xx":          {func(i *installation) { i.metrics["mtagd_http_requests_total{code=\"503\",surface=\"tag\"}"] = 500 }, page + "more than one of a hundred requests get a 5xx", ""},
		"panics":       {func(i *installation) { i.metrics["mtagd_panics_total"] = 2 }, ticket + "requests end in a panic", ""},
		"little disk":  {func(i *installation) { i.metrics["mtagd_disk_free_bytes{part=\"journal\"}"] = 5e9 }, page + "the disk has 4.7 GiB left", ""},
		"damage":       {func(i *installation) { i.metrics["mtagd_damaged_chunks"] = 1 }, page + "data is damaged", ""},
		"an old check": {func(i *installation) {
			i.setOld("process_start_time_seconds", "mtagd_scrub_last_finished_timestamp_seconds")
		}, ticket + "not all of the data was checked", ""},
		"an old backup": {func(i *installation) { i.setOld("mtagd_backup_last_success_timestamp_seconds") }, ticket + "no backup has succeeded for 24h", ""},
		"never a backup": {func(i *installation) {
			i.metrics["mtagd_backup_last_success_timestamp_seconds"] = 0
			must(i, os.RemoveAll(i.backups))
			must(i, os.Mkdir(i.backups, 0o700))
		}, ticket + "no backup has succeeded for 24h", ""},
		"no backup for long": {func(i *installation) {
			i.setOld("process_start_time_seconds", "mtagd_backup_last_success_timestamp_seconds")
		}, ticket + "no backup has succeeded for 30 days", ""},
		"an own host has no certificate": {func(i *installation) { i.metrics["mtagd_own_certificates_missing"] = 1 }, page + "the base host or the client tag host has no valid certificate", ""},
		"backups fail":                   {func(i *installation) { i.metrics["mtagd_backup_failures_total"] = 3 }, ticket + "3 backups have failed", ""},
		"erasures fail":                  {func(i *installation) { i.metrics[`mtagd_removals_failing{kind="erasure"}`] = 1 }, ticket + "events that must go cannot be removed", ""},
		"a certificate ends":             {func(i *installation) { i.setOld("mtagd_certificate_first_expiry_timestamp_seconds") }, ticket + "time left of a certificate: -30 days", ""},
		"an order that waits":            {func(i *installation) { i.metrics["mtagd_certificate_orders_oldest_wait_seconds"] = 7200 }, ticket + "an order of a certificate has waited for 2h", ""},
		"few files left":                 {func(i *installation) { i.metrics["process_open_fds"] = 950 }, ticket + "nearly all file descriptors", ""},
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "copy")
			if out, err := exec.Command("cp", "-a", sound.dir, dir).CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			i := installationIn(t, dir)
			c.spoil(i)
			out, code := i.examine()
			if !strings.Contains(out, "not looked at: ") && c.says == "nothing is wrong" {
				t.Errorf("it does not say what it cannot see: %s", out)
			}
			if (code == 0) != (name == "nothing is wrong") || !strings.Contains(out, c.says) {
				t.Errorf("exit code %d, %s\nwant %q", code, out, c.says)
			}
			for _, line := range regexp.MustCompile(`(?m)^(page|ticket) .*$`).FindAllString(out, -1) {
				if !strings.Contains(line, c.says) && (c.others == "" || !regexp.MustCompile(c.others).MatchString(line)) {
					t.Errorf("it also says %s", line)
				}
			}
		})
	}
}

func TestWhoCanGoThroughADirectory(t *testing.T) {
	dir := t.TempDir()
	uid, gid := os.Getuid(), os.Getgid()
	for mode, want := range map[os.FileMode][3]bool{0o700: {true}, 0o710: {true, true}, 0o701: {true, false, true}, 0o071: {false, true, true}} {
		must(t, os.Chmod(dir, mode))
		info, err := os.Stat(dir)
		must(t, err)
		if got := [3]bool{passes(uid, gid, info), passes(uid+1, gid, info), passes(uid+1, gid+1, info)}; got != want {
			t.Errorf("%o: owner, group and others: %v, want %v", mode, got, want)
		}
	}
}

func (i *installation) setOld(series ...string) {
	for _, s := range series {
		i.metrics[s] = float64(time.Now().Add(-30 * 24 * time.Hour).Unix())
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// setFormat makes the control data that of a newer version.
func setFormat(i *installation) {
	db, err := bbolt.Open(filepath.Join(i.data, "control.db"), 0o600, nil)
	must(i, err)
	must(i, db.Update(func(tx *bbolt.Tx) error { return tx.Bucket([]byte("meta")).Put([]byte("format"), []byte("9")) }))
	must(i, db.Close())
}

func takePort(i *installation) {
	i.stopped()
	l, err := net.Listen("tcp", i.config["http"].(string))
	must(i, err)
	i.Cleanup(func() { l.Close() })
}

func publish(i *installation) {
	file := filepath.Join(i.dir, "mtagd.yaml")
	i.config["admin-token"] = strings.Repeat("x", 40)
	text, err := yaml.Marshal(i.config)
	must(i, err)
	i.write(file, string(text))
	must(i, os.Chmod(file, 0o644))
}

func addCertificate(i *installation) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(i, err)
	pattern := &x509.Certificate{SerialNumber: big.NewInt(1), DNSNames: []string{"shop.example"}, NotAfter: time.Now().Add(24 * time.Hour)}
	certificate, err := x509.CreateCertificate(rand.Reader, pattern, pattern, key.Public(), key)
	must(i, err)
	must(i, os.MkdirAll(certificatesDir(i.data), 0o700))
	i.write(filepath.Join(certificatesDir(i.data), "shop.crt"), string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: certificate})))
}

// lock takes the right to write to a directory away. Root would have it all the same, but for a capability.
func (i *installation) lock(dir string) {
	must(i, os.Chmod(filepath.Join(i.dir, dir), 0o500))
	i.Cleanup(func() { _ = os.Chmod(filepath.Join(i.dir, dir), 0o700) }) // so that TempDir can be removed
	if os.Getuid() == 0 {
		i.as = []string{testenv.Program(i.T, "setpriv"), "--bounding-set=-dac_override"}
	}
}

// addDestination adds one to the control data, and no file of keys.
func addDestination(i *installation) {
	control, err := local.OpenControl(i.data, local.Options{})
	must(i, err)
	partners, err := control.Partners(i.Context())
	must(i, err)
	merchant, err := control.AddMerchant(i.Context(), partners[0].ID, store.NewMerchant{Name: "Shop"})
	must(i, err)
	must(i, control.UpdateDestination(i.Context(), merchant.ID, "dst", func([]byte) ([]byte, store.AuditEntry, error) {
		return []byte("{}"), store.AuditEntry{Action: store.DestinationCreated, Merchant: merchant.ID}, nil
	}))
	must(i, control.Close())
}

// The least limit of the machine, the container and the unit counts.
func TestMemoryUnder(t *testing.T) {
	root := t.TempDir()
	for _, c := range []struct {
		file, text string
		want       uint64
	}{
		{"proc/meminfo", "MemTotal:        2048000 kB\nMemFree: 1 kB\n", 2048000 << 10},
		{"sys/fs/cgroup/memory.max", "max\n", 2048000 << 10},
		{"sys/fs/cgroup/system.slice/mtagd.service/memory.max", "134217728\n", 128 << 20},
	} {
		must(t, os.MkdirAll(filepath.Dir(filepath.Join(root, c.file)), 0o700))
		must(t, os.WriteFile(filepath.Join(root, c.file), []byte(c.text), 0o600))
		if got := memoryUnder(root); got != c.want {
			t.Errorf("after %s: %d, want %d", c.file, got, c.want)
		}
	}
}
