package main

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/dustin/go-humanize/english"
	"golang.org/x/sys/unix"

	"mtagd/store"
	"mtagd/store/local/backup"
	"mtagd/store/local/space"
)

// doctorCommand is "mtagd doctor". It has the flags of serve, because it examines what serve would do with them.
type doctorCommand struct {
	Serve serveCommand `embed:""`
}

func (*doctorCommand) Help() string {
	return "Give it the same --config as serve. It changes nothing, and works with and without a running server: it then also looks at what the alerts look at. " +
		"Each line says what is wrong, the most urgent first; the line after it says what to do. Exit code 1: something is wrong."
}

type finding struct {
	urgency urgency
	what    string
	do      string
}

// urgency is the severity of an alert. The more urgent one sorts first.
type urgency string

const (
	page   urgency = "page"   // events are refused, or soon will be
	ticket urgency = "ticket" // somebody must look at it on the next working day
)

func (c *doctorCommand) Run(p *process) error {
	e := newExamination(p, &c.Serve)
	if err := c.Serve.check(p.data, p.origin); err != nil {
		e.add(page, oneLine(err), "correct the configuration: the service does not start with it")
	} else {
		e.examine()
	}
	e.print(p.stdout)
	if e.skipped != "" {
		fmt.Fprintln(p.stdout, "not looked at:", e.skipped)
	}
	if n := len(e.findings); n > 0 {
		return fmt.Errorf("%s wrong", english.Plural(n, "thing is", "things are"))
	}
	_, err := fmt.Fprintln(p.stdout, "nothing is wrong")
	return err
}

// examination is one of an installation.
type examination struct {
	*process
	serve    *serveCommand
	findings []finding
	checked  map[string]bool // checks that have found something
	skipped  string          // what was not looked at, and where to find out
}

func newExamination(p *process, serve *serveCommand) *examination {
	return &examination{process: p, serve: serve, checked: map[string]bool{}}
}

func (e *examination) print(w io.Writer) {
	slices.SortStableFunc(e.findings, func(a, b finding) int { return cmp.Compare(a.urgency, b.urgency) })
	for _, f := range e.findings {
		fmt.Fprintf(w, "%-7s %s\n        %s\n", f.urgency, f.what, f.do)
	}
}

func (e *examination) add(u urgency, what, do string, values ...any) {
	e.findings = append(e.findings, finding{u, oneLine(fmt.Errorf(what, values...)), do})
}

// found adds what a check has found, unless it has found something before.
func (e *examination) found(c check, value float64, detail string) {
	if e.checked[c.name] {
		return
	}
	e.checked[c.name] = true
	e.add(c.urgency, "%s", c.do+" ("+c.runbook()+")", c.words(value, detail))
}

// examine makes all checks. The flags were checked.
func (e *examination) examine() {
	running := e.checkRunning()
	e.checkConfigFile()
	if e.store == "" {
		e.checkDataDirectory(running)
		e.checkBackups()
	} else if err := checkDatabase(e.ctx, e.store); err != nil && !running {
		e.add(page, "%v", "start the database, let this machine reach it, or correct store; for a newer schema, install the newer version", err)
	}
	if !running {
		e.checkPorts()
		e.checkCertificateFiles()
	}
	e.checkMemory()
	e.checkNames()
	e.checkCA()
	known := e.store == "" || e.serve.Admin != adminOff
	if down := checkNamed(checkDown); known && !running { // the last of its urgency: the others may be why
		if slices.ContainsFunc(e.findings, func(f finding) bool { return f.urgency == page }) {
			down.do = "correct what is above, then " + down.do
		}
		e.found(down, 0, "")
	}
}

// checkRunning asks the admin pages of the server, and makes the checks of the alerts. It reports whether a server runs.
func (e *examination) checkRunning() bool {
	if e.serve.Admin == adminOff {
		e.add(ticket, "the admin pages are off", "set admin: without it neither alerts nor mtagd doctor see how the service is")
		return serverRuns(e.ctx, e.data)
	}
	admin := func(path string) (status int, text string, err error) {
		return askAdmin(e.ctx, e.serve.Admin, e.serve.AdminToken, path)
	}
	status, text, err := admin(readyPage)
	switch {
	case err != nil && serverRuns(e.ctx, e.data):
		e.add(page, "a server uses the data directory, but its admin pages do not answer: %v", "give mtagd doctor the same --admin as the server, and read its log", err)
		return true
	case err != nil:
		return false
	case status == http.StatusUnauthorized:
		e.add(ticket, "the server refuses the admin token", "give mtagd doctor the admin-token that the server was started with")
		return true
	case status != http.StatusOK && status != http.StatusServiceUnavailable:
		e.add(page, "another program answers at %s", "choose another address with admin, in the socket unit too", e.serve.Admin)
		return serverRuns(e.ctx, e.data)
	}
	allowed, metrics, err := admin("/metrics")
	if err == nil && allowed != http.StatusOK {
		err = errors.New(http.StatusText(allowed))
	}
	if err != nil {
		e.add(ticket, "the server shows no metrics: %v", "give mtagd doctor the admin-token that the server was started with, or look at its log", err)
		metrics = ""
	}
	m := parseMetrics(metrics)
	var skipped []string
	for _, c := range checks() {
		if because, is := reasonIn(text, c); is {
			e.found(c, 0, because)
		} else if c.is != nil {
			if value, wrong := c.is(m, float64(time.Now().Unix())); wrong {
				e.found(c, value, "")
			}
		} else if c.name != checkDown {
			skipped = append(skipped, c.name)
		}
	}
	if status == http.StatusServiceUnavailable {
		e.found(checkNamed(checkNotReady), 0, "")
	}
	e.skipped = "what needs the history that Prometheus has: " + strings.Join(skipped, ", ")
	return true
}

// checkConfigFile finds a file with a secret that everybody can read.
func (e *examination) checkConfigFile() {
	password := ""
	if database, err := url.Parse(e.store); err == nil && database.User != nil {
		password, _ = database.User.Password()
	}
	for flag, secret := range map[string]string{"admin-token": e.serve.AdminToken, "acme-eab-hmac-key": e.serve.ACMEEABHMACKey, "store": password} {
		file, _, _ := strings.Cut(e.origin.of(flag), ":")
		if info, err := os.Stat(file); secret != "" && err == nil && info.Mode()&0o004 != 0 {
			e.add(ticket, "everybody on this machine can read %s, which has the secret %s", "chown root:mtagd and chmod 0640 the file, and change the secret", file, flag)
		}
	}
}

func (e *examination) checkDataDirectory(running bool) {
	isNew, err := checkData(e.data, true)
	switch {
	case errors.Is(err, fs.ErrPermission):
		e.add(page, "the data directory %s %v", makeWritable, e.data, err)
		return
	case err != nil:
		e.add(page, "the data directory %s %v", "correct data in the configuration; a lost directory comes back with mtagd restore, a damaged one with mtagd repair", e.data, err)
		return
	}
	if info, err := os.Stat(e.data); err == nil && info.Mode()&0o007 != 0 {
		e.add(ticket, "everybody on this machine can reach into %s, where personal data is", "chmod 0700 the directory", e.data)
	}
	if running {
		return // its metrics were looked at
	}
	if err := checkWritable(e.data); err != nil {
		e.add(page, "the service cannot write its data: %v", makeWritable, err)
	} else if !isNew {
		e.checkControl()
		e.skipped = "the events: mtagd verify reads them"
	}
	for part, path := range dataParts(e.data, "") {
		free, err := space.Free(path)
		if err == nil && free < leastDisk {
			e.found(checkNamed(checkDiskLow), float64(free), path+" ("+part+")")
			break
		}
	}
}

const makeWritable = "give it to the service's user, who must reach it: chown -R mtagd:mtagd, and chmod o+x above it; a read-only file system must be mounted again: dmesg says what has happened"

// checkWritable returns why the service cannot write to a directory. For root it looks whether all belongs to the service's
// user, and whether that can reach it.
func checkWritable(dir string) error {
	service := serviceUser()
	path, err := filepath.Abs(dir)
	for err == nil && service != nil && path != "/" {
		path = filepath.Dir(path)
		var info fs.FileInfo
		if info, err = os.Stat(path); err == nil && !passes(service.uid, service.gid, info) {
			err = fmt.Errorf("the user mtagd cannot go through %s to %s", path, dir)
		}
	}
	if err != nil {
		return err
	}
	return filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.IsDir() && filepath.Dir(path) != dir { // a directory may have many files
			return err
		}
		if info, err := entry.Info(); err == nil && service != nil && !owns(service.uid, info) {
			return fmt.Errorf("%s does not belong to the user mtagd", path)
		}
		if err := unix.Access(path, unix.W_OK); err != nil && (entry.IsDir() || filepath.Ext(path) == ".db") { // a key may be only readable
			return fmt.Errorf("%s: %w", path, err)
		}
		return nil
	})
}

func owns(uid int, file fs.FileInfo) bool { return int(file.Sys().(*syscall.Stat_t).Uid) == uid }

// passes reports whether a user can go through a directory.
func passes(uid, gid int, dir fs.FileInfo) bool {
	right := fs.FileMode(0o001)
	if owns(uid, dir) {
		right = 0o100
	} else if int(dir.Sys().(*syscall.Stat_t).Gid) == gid {
		right = 0o010
	}
	return dir.Mode()&right != 0
}

// checkControl opens the control data as the start does, and compares it with the file of keys.
func (e *examination) checkControl() {
	opened, err := openControl(e.data, false, e.stderr)
	if err != nil {
		e.add(page, "%v", "if a server is starting, read its log; if the data is damaged, do as it says ("+checkNamed(checkDamage).runbook()+"); if a newer version wrote it, install that", err)
		return
	}
	defer opened.Close()
	file := secretKeyFile(e.data, e.serve.SecretKeyFile)
	documents, is := opened.(interface {
		Destinations(ctx context.Context, m store.MerchantID) ([]store.Document, error)
	})
	if _, err := os.Stat(file); is && errors.Is(err, fs.ErrNotExist) {
		if found, err := documents.Destinations(e.ctx, ""); err == nil && len(found) > 0 {
			e.add(page, "the secret key file %s is missing, and the credentials of %d destinations are encrypted by it",
				"put it back before the start, which would make a new one: no backup has it. If it is lost, the credentials must be entered again", file, len(found))
		}
	}
}

// checkBackups looks for a recent point where the backups go.
func (e *examination) checkBackups() {
	c := e.serve.backup
	if c == nil {
		e.add(ticket, "there are no backups", "set backup-to: see deploy/backup.md")
		return
	}
	ctx, cancel := context.WithTimeout(e.ctx, healthTimeout)
	defer cancel()
	points, err := backup.Points(ctx, c.To)
	newest := time.Time{}
	for _, point := range points {
		if point.Time.After(newest) {
			newest = point.Time
		}
	}
	switch {
	case err != nil:
		e.add(ticket, "the backups in %s cannot be read: %v", "make the destination reachable, with the rights of the service's user", e.serve.BackupTo, err)
	case c.To.String() == e.serve.BackupTo && checkWritable(e.serve.BackupTo) != nil:
		e.add(ticket, "the service cannot write its backups: %v", makeWritable, checkWritable(e.serve.BackupTo))
	case len(points) == 0 && !e.checked[checkBackupOld]:
		e.add(ticket, "there is no backup in %s yet", checkNamed(checkBackupOld).do, e.serve.BackupTo)
	case time.Since(newest) > 2*c.Every+10*time.Minute:
		e.found(checkNamed(checkBackupOld), time.Since(newest).Seconds(), "the newest in "+e.serve.BackupTo+" is of "+newest.Format(time.RFC3339))
	}
}

// checkPorts finds programs that have the ports. systemd itself may hold them for the service.
func (e *examination) checkPorts() {
	if err := exec.CommandContext(e.ctx, "systemctl", "is-active", "--quiet", "mtagd-http.socket").Run(); err == nil {
		return
	}
	for _, port := range [][2]string{{"http", e.serve.HTTP}, {"https", e.serve.HTTPS}} {
		if l, err := net.Listen("tcp", port[1]); err == nil {
			l.Close()
		} else if port[0] == "http" || e.serve.hasTLS() {
			e.add(page, "--%s: %v", "stop the program that has the port (ss -ltnp shows it), or run this command as root", port[0], err)
		}
	}
}

func (e *examination) checkCertificateFiles() {
	err := filepath.WalkDir(certificatesDir(e.data), func(path string, entry fs.DirEntry, err error) error {
		if err != nil || filepath.Ext(path) != ".crt" {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		block, _ := pem.Decode(text)
		if block == nil {
			e.add(ticket, "%s is no certificate", "delete it: the service orders another one", path)
			return nil
		}
		if certificate, err := x509.ParseCertificate(block.Bytes); err == nil && time.Until(certificate.NotAfter) < certificateWarning {
			e.found(checkNamed(checkCertificate), time.Until(certificate.NotAfter).Seconds(), strings.Join(certificate.DNSNames, ", "))
		}
		return nil
	})
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		e.add(ticket, "certificates cannot be read: %v", "give the service's user the rights to the data directory", err)
	}
}

// leastMemory is what the service needs with a little load, in bytes.
const leastMemory = 256 << 20

func (e *examination) checkMemory() {
	if total := memoryUnder("/"); total < leastMemory {
		e.add(ticket, "the service has at most %s of memory", "give it at least 512 MiB (MemoryMax of the unit, the limit of the container, or the machine's): it may be killed under load", humanize.IBytes(total))
	}
}

// memoryUnder returns the memory limit of the service, on a machine or in a container whose files are under root.
func memoryUnder(root string) uint64 {
	least := uint64(math.MaxUint64)
	for file, unit := range map[string]uint64{"proc/meminfo": 1 << 10, "sys/fs/cgroup/memory.max": 1, "sys/fs/cgroup/system.slice/mtagd.service/memory.max": 1} {
		text, err := os.ReadFile(filepath.Join(root, file))
		var n uint64
		if _, failed := fmt.Sscan(strings.TrimPrefix(string(text), "MemTotal:"), &n); err == nil && failed == nil { // without a limit it is "max"
			least = min(least, n*unit)
		}
	}
	return least
}

// checkNames looks up the service's own hosts. All must lead to the same machine, because it gets their certificates.
func (e *examination) checkNames() {
	resolver := net.DefaultResolver
	if len(e.serve.DNSResolver) > 0 {
		resolver = &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, network, e.serve.DNSResolver[0])
		}}
	}
	var first []string
	for _, h := range [][2]string{{"base-host", e.serve.BaseHost}, {"client-tag-host", e.serve.ClientTagHost}, {"cname-target", e.serve.CNAMETarget}} {
		ctx, cancel := context.WithTimeout(e.ctx, healthTimeout)
		addresses, err := resolver.LookupHost(ctx, h[1])
		cancel()
		slices.Sort(addresses)
		switch {
		case err != nil:
			if failed, ok := errors.AsType[*net.DNSError](err); ok {
				err = errors.New(failed.Err) // the rest names another resolver than the one that was asked
			}
			e.add(page, "%s %s has no address: %v", "add an A record (and AAAA) that leads to this machine; new records may take an hour", h[0], h[1], err)
		case first == nil:
			first = addresses
		case !slices.Equal(addresses, first):
			e.add(ticket, "%s %s leads to %s, but the base host to %s", "let all three names lead to this machine, or to its load balancer",
				h[0], h[1], strings.Join(addresses, ", "), strings.Join(first, ", "))
		}
	}
}

// maxClockError is how wrong the clock may be: events that are five minutes ahead get the time of receipt.
const maxClockError = time.Minute

// checkCA asks the CA, whose answer also has the time.
func (e *examination) checkCA() {
	if !e.serve.hasTLS() {
		return
	}
	client := &http.Client{Timeout: healthTimeout, Transport: &http.Transport{
		Proxy: http.ProxyFromEnvironment, DisableKeepAlives: true, TLSClientConfig: &tls.Config{RootCAs: e.serve.roots},
	}}
	request, err := http.NewRequestWithContext(e.ctx, http.MethodGet, e.serve.ACMECA, nil)
	if err != nil {
		return // the flag was checked
	}
	answer, err := client.Do(request)
	if err != nil {
		e.add(ticket, "the CA does not answer: %v", "let this machine reach it over HTTPS: without it no certificate is issued or renewed", err)
		return
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		e.add(ticket, "the CA answers %s", "look at acme-ca, and whether the CA has a disturbance", answer.Status)
	}
	if at, err := http.ParseTime(answer.Header.Get("Date")); err == nil && time.Since(at).Abs() > maxClockError+healthTimeout {
		e.add(page, "the clock of this machine is wrong by %s", "synchronise it, as with timedatectl set-ntp true: certificates and times of events depend on it", time.Since(at).Round(time.Second))
	}
}
