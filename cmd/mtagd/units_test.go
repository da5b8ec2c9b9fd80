package main

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"mtagd/store/testenv"
)

// settings returns the values of a setting in a file of deploy/.
func settings(t *testing.T, file, name string) (values []string) {
	t.Helper()
	for _, match := range regexp.MustCompile(`(?m)^`+name+`=(.*)$`).FindAllStringSubmatch(readDeploy(t, file), -1) {
		values = append(values, strings.Fields(match[1])...)
	}
	if len(values) == 0 {
		t.Fatalf("%s has no %s=", file, name)
	}
	return values
}

// Each socket unit belongs to the service, and its name is one that the service knows.
func TestSocketUnits(t *testing.T) {
	var names []string
	for _, unit := range settings(t, "mtagd.service", "Sockets") {
		names = append(names, settings(t, unit, "FileDescriptorName")...)
		if service := settings(t, unit, "Service"); service[0] != "mtagd.service" {
			t.Errorf("%s is of %s", unit, service)
		}
	}
	if want := []string{socketHTTP, socketHTTPS, socketAdmin}; !slices.Equal(names, want) {
		t.Errorf("the sockets are %s, want %s", names, want)
	}
	if admin := settings(t, "mtagd-admin.socket", "ListenStream"); admin[0] != defaultAdmin {
		t.Errorf("the admin pages are at %s, want %s", admin[0], defaultAdmin)
	}
	if strings.HasSuffix(defaultAdmin, ":9090") {
		t.Error("the admin pages have the port of Prometheus, which runs on the same machine")
	}
}

// systemd does not restart after the exit code of a wrong configuration. A crash must not end with that code.
func TestUnitRestartsAfterACrash(t *testing.T) {
	if code := settings(t, "mtagd.service", "RestartPreventExitStatus"); code[0] != "2" || exitUsage != 2 {
		t.Errorf("exit code %d is a wrong configuration, but code %s prevents a restart", exitUsage, code)
	}
	f := newFakeSystemd(t)
	f.open("http", "127.0.0.1:0")
	f.open("admin", "127.0.0.1:0")
	cmd := f.command()
	cmd.Env = append(cmd.Env, settings(t, "mtagd.service", "Environment")...)
	s, err := launch(cmd)
	if err != nil {
		t.Fatal(err)
	}
	err = s.end(syscall.SIGABRT) // as the watchdog does
	exit, ok := errors.AsType[*exec.ExitError](err)
	if !ok || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGABRT {
		t.Errorf("ended with %v, want by SIGABRT", err)
	}
	if !strings.Contains(s.Log(), "goroutine 1 ") {
		t.Error("the log has no goroutines")
	}
}

// analyze runs systemd-analyze, which needs no running systemd. It returns what it prints.
func analyze(t *testing.T, args ...string) (string, error) {
	t.Helper()
	path, err := testenv.Find("systemd-analyze")
	if err != nil {
		testenv.Skip(t, err.Error())
	}
	out, err := exec.Command(path, args...).CombinedOutput()
	return string(out), err
}

// systemd itself finds nothing wrong with the units.
func TestUnitsAreValid(t *testing.T) {
	dir := t.TempDir()
	args := []string{"verify"}
	for _, unit := range append([]string{"mtagd.service"}, settings(t, "mtagd.service", "Sockets")...) {
		installed := strings.ReplaceAll(readDeploy(t, unit), "/usr/bin/mtagd", "/bin/true")
		if err := os.WriteFile(filepath.Join(dir, unit), []byte(installed), 0o600); err != nil {
			t.Fatal(err)
		}
		args = append(args, filepath.Join(dir, unit))
	}
	if out, err := analyze(t, args...); err != nil || len(out) > 0 {
		t.Errorf("%v: %s", err, out)
	}
}

// systemd finds the service little exposed: 1.4 of 10 in version 252. Other versions may count a little differently.
func TestUnitIsLittleExposed(t *testing.T) {
	out, err := analyze(t, "security", "--offline=true", "--threshold=17", "--no-pager", "../../deploy/mtagd.service")
	if strings.Contains(out, "unrecognized option") {
		testenv.Skip(t, "systemd-analyze is older than that of systemd 250")
	}
	if err != nil {
		t.Errorf("%v: %s", err, out)
	}
}
