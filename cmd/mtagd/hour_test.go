package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"mtagd/store/testenv"
	"mtagd/tlsmgr/acmetest"
)

// The shell commands of the guide's first page work as they are, from the set-up to an alert, with a real CA and DNS of a
// test. TestRelease installs the package before them. What is not of this test's directory is replaced: sudo, systemctl,
// and where curl finds the hosts.
func TestInstallGuide(t *testing.T) {
	testenv.Program(t, "curl")
	z, err := startZone()
	must(t, err)
	t.Cleanup(z.stop)
	for _, name := range []string{"api.example.com", "tags.example.com", "cname.example.com"} {
		must(t, z.set(name, "A", "127.0.0.1"))
	}
	ca := acmetest.Start(t, acmetest.Options{Resolver: z.address})
	dir := t.TempDir()
	overHTTP, overHTTPS := freeAddress(t), freeAddress(t)
	ca.Validate(overHTTP, overHTTPS)
	_, dnsPort, _ := net.SplitHostPort(z.address)
	_, port, _ := net.SplitHostPort(overHTTPS)
	must(t, os.Mkdir(filepath.Join(dir, "bin"), 0o700))
	real, err := exec.LookPath("curl")
	must(t, err)
	for name, script := range map[string]string{
		"sudo":      `shift 2; exec "$@"`, // sudo -u mtagd
		"curl":      fmt.Sprintf(`exec %s --insecure --connect-to ::127.0.0.1:%s "$@"`, real, port),
		"systemctl": `test "$1" != is-active || exit 3; echo "$1" >"$DIR/systemctl.new"; mv "$DIR/systemctl.new" "$DIR/systemctl"; while test -e "$DIR/systemctl"; do sleep 0.05; done`,
	} {
		must(t, os.WriteFile(filepath.Join(dir, "bin", name), []byte("#!/bin/sh\n"+script+"\n"), 0o700))
	}
	guide, err := os.ReadFile("../../deploy/install.md")
	must(t, err)
	var script strings.Builder
	for _, block := range regexp.MustCompile("(?s)```sh\n(.*?)```").FindAllStringSubmatch(string(guide), -1) {
		script.WriteString(block[1])
		switch {
		case strings.Contains(block[1], "mtagd init"):
			script.WriteString("systemctl enable\n") // as init does where systemd runs
		case strings.Contains(block[1], "/tracktag/generate"):
			script.WriteString(`echo "$HOST" >"$DIR/host"; while test -e "$DIR/host"; do sleep 0.05; done` + "\n")
		}
	}
	text := strings.NewReplacer("/etc/mtagd.yaml", "$DIR/mtagd.yaml", "/mnt/backup/mtagd", "$DIR/backup", "/tmp/restored", "$DIR/restored").Replace(script.String())
	env := append(os.Environ(), "DIR="+dir, "PATH="+filepath.Join(dir, "bin")+":"+os.Getenv("PATH"), "MTAGD_WRITE="+filepath.Join(dir, "mtagd.yaml"),
		"MTAGD_DATA="+filepath.Join(dir, "data"), "MTAGD_HTTP="+overHTTP, "MTAGD_HTTPS="+overHTTPS, "MTAGD_ADMIN="+freeAddress(t),
		"MTAGD_ACME_CA="+ca.URL, "MTAGD_ACME_CA_ROOT="+ca.RootsFile, "MTAGD_DNS_RESOLVER="+z.address, "MTAGD_DNS_PORT="+dnsPort,
		"MTAGD_DNS_ALLOW_PRIVATE=true", "MTAGD_START=false", "MTAGD_LOG_FORMAT=json")

	var running *service
	stop := func() {
		if running != nil {
			must(t, running.stop())
			running = nil
		}
	}
	defer stop()
	read := func(name string) string { // what the script asks for
		text, _ := os.ReadFile(filepath.Join(dir, name))
		return strings.TrimSpace(string(text))
	}
	cmd := exec.CommandContext(t.Context(), "sh", "-eu", "-c", text)
	cmd.Env, cmd.Dir = env, dir
	ended := make(chan error, 1)
	log, err := os.Create(filepath.Join(dir, "out"))
	must(t, err)
	defer log.Close()
	cmd.Stdout, cmd.Stderr = log, log
	go func() { ended <- cmd.Run() }()
	host, finished := "", false
	for !finished {
		select {
		case err := <-ended:
			if err != nil {
				t.Fatalf("%v: %s", err, read("out"))
			}
			finished = true
		case <-time.After(20 * time.Millisecond):
		}
		if h := read("host"); h != "" {
			host = h
			must(t, z.set(host, "CNAME", "cname.example.com."))
			must(t, os.Remove(filepath.Join(dir, "host")))
		}
		if action := read("systemctl"); action != "" {
			if stop(); action != "stop" {
				serve := exec.Command("mtagd", "serve", "--config", filepath.Join(dir, "mtagd.yaml"))
				serve.Env = env
				if running, err = launch(serve); err != nil {
					t.Fatalf("%v; the script has %s", err, read("out"))
				}
			}
			must(t, os.Remove(filepath.Join(dir, "systemctl")))
		}
	}
	out := read("out")
	for _, want := range []string{"https://api.example.com/console/#link=mtl_", `"verified":true`, "Event accepted", `"totalItems":1`, "the service does not answer"} {
		if !strings.Contains(out, want) {
			t.Errorf("%q is missing in %s", want, out)
		}
	}
	config := read("mtagd.yaml")
	if lines, reasons := strings.Count(config, "\n"), strings.Count(config, "\n# "); reasons < 6 || !strings.Contains(config, "\n\n# Host of the partner API.\nbase-host: api.example.com\n") {
		t.Errorf("the configuration has %d lines and %d reasons:\n%s", lines, reasons, config)
	}
	client := &http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, overHTTPS)
		},
		TLSClientConfig: &tls.Config{RootCAs: ca.Issuers}, DisableKeepAlives: true,
	}}
	answer, err := client.Get("https://" + host + "/health")
	must(t, err)
	answer.Body.Close()
}

// Init writes nothing while something stops the service, and asks for what is not given.
func TestInitRefuses(t *testing.T) {
	i := newInstallation(t)
	i.stopped()
	file := filepath.Join(i.dir, "new.yaml")
	init := func(input string, more ...string) (string, error) {
		cmd := exec.Command("mtagd", append([]string{"init", "--write", file, "--data", "new", "--no-start", "--tls", "off",
			"--http", "127.0.0.1:0", "--hsts", "--handshakes-per-ip", "7", "--dns-resolver", i.zone.address}, more...)...)
		cmd.Stdin, cmd.Dir = strings.NewReader(input), i.dir
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	for _, c := range []struct{ what, input, says string }{
		{"no answer", "", "--base-host: is required"},
		{"a wrong host", "https://api.mtagd.test\n\n\n\n\n", "must be a host name without protocol"},
		{"a host without an address", "api.nowhere.test\n\n\n\n\n", "has no address"},
	} {
		out, err := init(c.input)
		if _, there := os.Stat(file); err == nil || !strings.Contains(out, c.says) || there == nil {
			t.Errorf("%s: %v, %s", c.what, err, out)
		}
	}
	// The names below the base host are proposed.
	out, err := init(baseHost + "\n\n\n\n\n")
	if err != nil || !strings.Contains(out, "https://"+baseHost+"/console/#link=mtl_") || !strings.Contains(out, "systemctl enable --now") {
		t.Fatalf("%v, %s", err, out)
	}
	if text, err := os.ReadFile(file); err != nil || !strings.Contains(string(text), "client-tag-host: "+tagHost+"\n") || !strings.Contains(string(text), "data: "+i.dir+"/new\n") ||
		!strings.Contains(string(text), "hsts: true\n") || !strings.Contains(string(text), "handshakes-per-ip: 7\n") || strings.Contains(string(text), "backup-to") {
		t.Errorf("%v: %s", err, text)
	}
	if out, err := init(baseHost + "\n\n\n\n\n"); err == nil || !strings.Contains(out, "is there already") {
		t.Errorf("%v, %s", err, out)
	}
}

// Others may use the directory of backups: its mode stays. A data directory is for the service alone.
func TestInitLeavesTheModeOfABackupDirectory(t *testing.T) {
	service := &owner{os.Getuid(), os.Getgid()}
	for _, c := range []struct {
		exists, private bool
		want            os.FileMode
	}{{true, false, 0o750}, {true, true, 0o700}, {false, false, 0o700}} {
		path := filepath.Join(t.TempDir(), "dir")
		if c.exists {
			must(t, errors.Join(os.Mkdir(path, 0o700), os.Chmod(path, 0o750)))
		}
		must(t, makeDir(path, service, c.private))
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != c.want {
			t.Errorf("%+v: the directory is %v, %v", c, info, err)
		}
	}
}
