package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"mtagd/store/testenv"
)

// makeRelease runs what make release runs, for this machine's architecture alone.
func makeRelease(t *testing.T, from, version string, variables ...string) (dir string) {
	t.Helper()
	pgo := "off" // as in make run: with the profile, everything would be compiled once more
	if os.Getenv("CI") == "true" {
		pgo = "auto" // as in make build, which make check runs before
	}
	dir = filepath.Join(t.TempDir(), "release")
	cmd := exec.CommandContext(t.Context(), "go", "run", "-C", "tools", "./release",
		"-root", from, "-out", dir, "-arch", runtime.GOARCH, "-version", version, "-pgo", pgo)
	cmd.Dir = from
	cmd.Env = append(os.Environ(), variables...)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return dir
}

// TestRelease makes a release, and what can be installed of it is installed, upgraded under load and removed, in a
// throw-away copy of this Debian.
func TestRelease(t *testing.T) {
	testenv.NotShort(t, "to compile a release")
	here, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	first := makeRelease(t, here, "1.0.0")
	name := func(form string) string { return strings.Replace(form, "ARCH", runtime.GOARCH, 1) }

	t.Run("the same bytes again", func(t *testing.T) {
		if os.Getenv("CI") != "true" {
			t.Skip("a release takes 15 seconds of processor time: only make check makes it twice")
		}
		again := makeRelease(t, here, "1.0.0", "TZ=Asia/Tokyo", "LANG=de_DE.UTF-8", "GOFLAGS=-buildvcs=true")
		sums := func(dir string) (all map[string]string) {
			files, err := filepath.Glob(filepath.Join(dir, "*"))
			if err != nil {
				t.Fatal(err)
			}
			all = map[string]string{}
			for _, file := range files {
				content, err := os.ReadFile(file)
				if err != nil {
					t.Fatal(err)
				}
				all[filepath.Base(file)] = fmt.Sprintf("%x", sha256.Sum256(content))
			}
			return all
		}
		if a, b := sums(first), sums(again); !maps.Equal(a, b) || len(a) != 5 {
			t.Errorf("the files differ:\n%s\n%s", a, b)
		}
	})
	t.Run("the list of modules", func(t *testing.T) {
		text, err := os.ReadFile(filepath.Join(first, "mtagd-1.0.0.cdx.json"))
		if err != nil || !json.Valid(text) || !strings.Contains(string(text), "pkg:golang/github.com/dgraph-io/badger/v4@v4.") ||
			strings.Contains(string(text), "pebble") {
			t.Errorf("%v: %s", err, text)
		}
	})
	t.Run("the version", func(t *testing.T) {
		out, err := exec.Command(filepath.Join(first, name("mtagd-1.0.0-linux-ARCH")), "version").Output()
		head, _ := exec.Command("git", "rev-parse", "HEAD").Output()
		want := fmt.Sprintf("mtagd 1.0.0\ncommit %s%s linux/%s\n", head, runtime.Version(), runtime.GOARCH)
		if err != nil || !strings.HasPrefix(string(out), want) || !strings.Contains(string(out), "control 2 and 5") {
			t.Errorf("%v: %s\nwant %s", err, out, want)
		}
	})
	t.Run("the image", func(t *testing.T) { testImage(t, filepath.Join(first, "mtagd-1.0.0-image.tar")) })

	binary := filepath.Join(first, name("mtagd-1.0.0-linux-ARCH"))
	t.Run("deb", func(t *testing.T) {
		deb := filepath.Join(first, name("mtagd-1.0.0-ARCH.deb"))
		testPackage(t, binary, "/usr/share/zsh/vendor-completions/_mtagd", []string{"dpkg", "--install", deb}, []string{"dpkg", "--install", deb},
			[]string{"dpkg", "--remove", "mtagd"}, []string{"dpkg", "--purge", "mtagd"})
	})
	t.Run("rpm", func(t *testing.T) {
		testenv.Program(t, "rpm")
		rpm := filepath.Join(first, name("mtagd-1.0.0-ARCH.rpm"))
		testPackage(t, binary, "/usr/share/zsh/site-functions/_mtagd", []string{"rpm", "--nodeps", "-i", rpm},
			[]string{"rpm", "--nodeps", "-U", "--replacepkgs", rpm}, []string{"rpm", "-e", "mtagd"}, nil)
	})
}

// testImage unpacks an image, and runs it as its user in its file system alone.
func testImage(t *testing.T, file string) {
	files := readTar(t, file)
	var index struct {
		Manifests []struct {
			Digest, MediaType string
			Platform          struct{ Architecture string }
		}
	}
	blob := func(digest string, v any) []byte {
		t.Helper()
		content := files["blobs/sha256/"+strings.TrimPrefix(digest, "sha256:")]
		if fmt.Sprintf("sha256:%x", sha256.Sum256(content)) != digest {
			t.Fatalf("%s has another digest", digest)
		}
		if v != nil {
			if err := json.Unmarshal(content, v); err != nil {
				t.Fatal(err)
			}
		}
		return content
	}
	if err := json.Unmarshal(files["index.json"], &index); err != nil {
		t.Fatal(err)
	}
	blob(index.Manifests[0].Digest, &index)
	var manifest struct {
		Config struct{ Digest string }
		Layers []struct{ Digest string }
	}
	if index.Manifests[0].Platform.Architecture != runtime.GOARCH {
		t.Errorf("the index is %+v", index)
	}
	blob(index.Manifests[0].Digest, &manifest)
	var image struct {
		RootFS struct {
			DiffIDs []string `json:"diff_ids"`
		}
		Config struct {
			User        string
			Entrypoint  []string
			Env         []string
			Healthcheck struct{ Test []string }
		}
	}
	blob(manifest.Config.Digest, &image)
	packed, err := gzip.NewReader(bytes.NewReader(blob(manifest.Layers[0].Digest, nil)))
	if err != nil {
		t.Fatal(err)
	}
	layer, err := io.ReadAll(packed)
	if err != nil || fmt.Sprintf("sha256:%x", sha256.Sum256(layer)) != image.RootFS.DiffIDs[0] {
		t.Errorf("the layer has another digest, %v", err)
	}
	if os.Getuid() != 0 {
		testenv.Skip(t, "an image can be run only as root")
	}
	root := t.TempDir()
	unpack := exec.Command("tar", "-xpC", root)
	unpack.Stdin = bytes.NewReader(layer)
	if out, err := unpack.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if roots, err := os.ReadFile(filepath.Join(root, "etc/ssl/certs/ca-certificates.crt")); err != nil || bytes.Count(roots, []byte("BEGIN")) < 100 {
		t.Errorf("there are few root certificates, %v", err)
	}
	inside := func(arguments ...string) *exec.Cmd {
		cmd := exec.Command("chroot", append([]string{"--userspec=" + image.Config.User, root}, arguments...)...)
		cmd.Env = append(image.Config.Env, "MTAGD_ADMIN="+freeAddress(t))
		return cmd
	}
	admin := freeAddress(t)
	serve := inside(append(image.Config.Entrypoint, "serve", "--tls", "off", "--http", "127.0.0.1:0", "--admin", admin,
		"--base-host", "api.example.net", "--client-tag-host", "tags.example.net", "--cname-target", "cname.example.net")...)
	if err := serve.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := serve.Process.Signal(syscall.SIGTERM); err != nil {
			t.Error(err)
		}
		if err := serve.Wait(); err != nil {
			t.Error(err)
		}
	})
	eventually(t, "the image is healthy", func() bool {
		health := inside(image.Config.Healthcheck.Test[1:]...)
		health.Env = append(health.Env, "MTAGD_ADMIN="+admin)
		return health.Run() == nil
	})
	if info, err := os.Stat(filepath.Join(root, "data", "control.db")); err != nil || info.Sys().(*syscall.Stat_t).Uid == 0 {
		t.Errorf("the data is not the user's, %v", err)
	}
}

func readTar(t *testing.T, name string) map[string][]byte {
	t.Helper()
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	files := map[string][]byte{}
	for r := tar.NewReader(f); ; {
		h, err := r.Next()
		if err == io.EOF {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		if files[h.Name], err = io.ReadAll(r); err != nil {
			t.Fatal(err)
		}
	}
}

// freeAddress returns an address that nobody uses. The kernel gives others ports from 32768 on, so none of them takes it
// meanwhile.
func freeAddress(t *testing.T) string {
	t.Helper()
	for range 100 {
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", 10_000+rand.IntN(20_000)))
		if err == nil {
			defer l.Close()
			return l.Addr().String()
		}
	}
	t.Fatal("no port is free")
	return ""
}

func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(startTimeout); !is(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("not reached: ", what)
		}
	}
}

// testPackage installs a package of a program, starts what it has installed, upgrades it to the same version while events
// come in, and removes it.
func testPackage(t *testing.T, binary, zsh string, install, upgrade, remove, purge []string) {
	d := copyDebian(t)
	systemctl := "#!/bin/sh\necho \"$*\" >>/systemctl.log\ncase $* in \"try-restart mtagd.service\") test -e /running || exit 0; touch /restart; while test -e /restart; do sleep 0.05; done ;; esac\n"
	d.write("/usr/bin/systemctl", systemctl, 0o755)
	if d.has("/usr/bin/mandb") { // dpkg would index the pages of all packages, at each step
		d.write("/usr/bin/mandb", "#!/bin/sh\n", 0o755)
	}
	d.run("mkdir", "-p", "/run/systemd/system")
	if out := d.run(install...); !strings.Contains(out, "mtagd init") {
		t.Errorf("whoever installs it is not told what to do: %s", out)
	}
	for _, file := range []string{"/usr/bin/mtagd", "/usr/lib/systemd/system/mtagd.service", "/usr/lib/systemd/system/mtagd-https.socket",
		"/usr/share/bash-completion/completions/mtagd", "/usr/share/fish/vendor_completions.d/mtagd.fish", zsh,
		"/usr/share/man/man1/mtagd-key-issue.1.gz", "/usr/share/doc/mtagd/CHANGELOG.md"} {
		d.run("test", "-s", file)
	}
	if out := d.run("mtagd", "version"); !strings.HasPrefix(out, "mtagd 1.0.0\n") {
		t.Error(out)
	}
	if log := d.read("/systemctl.log"); !strings.Contains(log, "try-restart mtagd.service") || strings.Contains(log, "enable") {
		t.Errorf("systemctl was asked for:\n%s", log) // a service that is not set up is not started
	}
	d.run("sh", "-c", `umask 077; exec mtagd "$@"`, "sh", "init", "--base-host", "api.example.net", "--client-tag-host", "tags.example.net", "--cname-target", "cname.example.net",
		"--dns-resolver", "127.0.0.1:1", "--tls", "off", "--data", "/srv/data/mtagd", "--backup-to", "/srv/new/backup", "--no-start", "--force")
	if text := d.read("/etc/systemd/system/mtagd.service.d/paths.conf"); text != "[Service]\nReadWritePaths=-\"/srv/data/mtagd\"\nReadWritePaths=-\"/srv/new/backup\"\n" {
		t.Errorf("the unit may write to:\n%s", text)
	}
	d.run("mv", "/srv/data/mtagd", "/var/lib/mtagd")
	d.write("/etc/mtagd.yaml", "data: /var/lib/mtagd\ntls: \"off\"\nadmin: \"off\"\nlimits: \"off\"\nbase-host: localhost\nclient-tag-host: localhost\ncname-target: cname.example.net\n", 0o644)

	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	socket, err := listener.(*net.TCPListener).File()
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	url := "http://localhost:" + fmt.Sprint(listener.Addr().(*net.TCPAddr).Port)
	start := func() *exec.Cmd { // as the unit does
		cmd := d.command("setpriv", "--reuid=mtagd", "--regid=mtagd", "--clear-groups", "sh", "-c",
			"LISTEN_PID=$$ exec mtagd serve --config /etc/mtagd.yaml")
		cmd.ExtraFiles = []*os.File{socket}
		cmd.Env = append(os.Environ(), debianPath, "LISTEN_FDS=1", "LISTEN_FDNAMES=http", "GORACE="+raceOptions)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		return cmd
	}
	stop := func(cmd *exec.Cmd) {
		if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Error(err)
		}
		if err := cmd.Wait(); err != nil {
			t.Errorf("the service ended with %v", err)
		}
	}
	d.run("sh", "-c", "printf old >>/usr/bin/mtagd") // still the same program, but not what the upgrade brings
	service := start()
	d.write("/running", "", 0o644)
	asService := func(arguments ...string) string {
		return d.run(append([]string{"setpriv", "--reuid=mtagd", "--regid=mtagd", "--clear-groups", "mtagd"}, arguments...)...)
	}
	var made struct{ PartnerID, APIKey, MerchantID, TagID string }
	parse := func(text string) {
		t.Helper()
		if err := json.Unmarshal([]byte(text), &made); err != nil {
			t.Fatal(err, text)
		}
	}
	eventually(t, "the service answers", func() bool {
		answer, err := http.Get(url + "/health")
		return err == nil && answer.Body.Close() == nil && answer.StatusCode == http.StatusOK
	})
	asService("backup", "create", "--config", "/etc/mtagd.yaml", "/srv/new/backup")
	d.run("chmod", "0700", "/srv/new")
	out, _ := d.command("mtagd", "doctor", "--config", "/etc/mtagd.yaml", "--backup-to", "/srv/new/backup").CombinedOutput()
	if !strings.Contains(string(out), "the user mtagd cannot go through /srv/new to /srv/new/backup") {
		t.Errorf("doctor does not see that the service cannot reach its backups: %s", out)
	}
	parse(asService("partner", "add", "--config", "/etc/mtagd.yaml", "--name", "Agency"))
	parse(asService("key", "issue", "--config", "/etc/mtagd.yaml", "--partner", made.PartnerID))
	post := func(path, body string) (int, string, error) {
		request, err := http.NewRequest(http.MethodPost, url+path, strings.NewReader(body))
		if err != nil {
			return 0, "", err
		}
		request.Header.Set("Authorization", "Bearer "+made.APIKey)
		if strings.HasPrefix(path, "/mark/") {
			request.Header.Del("Authorization")
		}
		answer, err := http.DefaultClient.Do(request)
		if err != nil {
			return 0, "", err
		}
		defer answer.Body.Close()
		text, err := io.ReadAll(answer.Body)
		return answer.StatusCode, string(text), err
	}
	_, merchant, _ := post("/v1/partners/merchant", `{"name":"Shop"}`)
	parse(merchant)
	_, tag, _ := post("/v1/partners/tracktag/generate", `{"merchantId":"`+made.MerchantID+`","type":"client-side"}`)
	parse(tag)

	// While events come in, the package is upgraded. Every one is accepted, the first time.
	var sent, refused atomic.Int64
	var load sync.WaitGroup
	upgraded := make(chan struct{})
	for range 4 {
		load.Go(func() {
			for n := 0; ; n++ {
				select {
				case <-upgraded:
					return
				default:
				}
				if status, text, err := post("/mark/"+made.TagID, `{"muid":"m","event":"Purchase"}`); status != http.StatusCreated {
					refused.Add(1)
					t.Logf("%d %s %v", status, text, err)
					return
				}
				sent.Add(1)
				time.Sleep(2 * time.Millisecond) // or the load would decide how long the upgrade takes
			}
		})
	}
	restarts := make(chan struct{})
	go func() { // what systemd does for try-restart
		defer close(restarts)
		for !d.has("/restart") {
			time.Sleep(10 * time.Millisecond)
		}
		stop(service)
		service = start()
		if err := os.Remove(d.path("/restart")); err != nil {
			t.Error(err)
		}
	}()
	eventually(t, "load", func() bool { return sent.Load() > 50 })
	d.run(upgrade...)
	<-restarts
	before := sent.Load()
	eventually(t, "load after the upgrade", func() bool { return sent.Load() > before+50 || refused.Load() > 0 })
	close(upgraded)
	load.Wait()
	if refused.Load() > 0 {
		t.Errorf("%d requests failed during the upgrade", refused.Load())
	}
	d.run("cmp", "/usr/bin/mtagd", binary)
	_, list := get(t, url+"/v1/partners/events?merchantId="+made.MerchantID, made.APIKey)
	if want := fmt.Sprintf(`"totalItems":%d,`, sent.Load()); !strings.Contains(list, want) {
		t.Errorf("want %s events: %.300s", want, list)
	}

	stop(service) // as systemctl disable --now does
	d.run(remove...)
	if log := d.read("/systemctl.log"); !strings.Contains(log, "disable --now mtagd-http.socket mtagd-https.socket mtagd-admin.socket mtagd.service") {
		t.Errorf("systemctl was asked for:\n%s", log)
	}
	if d.has("/usr/bin/mtagd") || !d.has("/var/lib/mtagd/control.db") || !d.has("/etc/mtagd.yaml") {
		t.Error("after the removal, the program is there, or the data is not")
	}
	if purge != nil {
		d.run(purge...)
		if d.has("/var/lib/mtagd") || d.has("/etc/systemd/system/mtagd.service.d") || d.has("/etc/mtagd.yaml") || strings.Contains(d.read("/etc/passwd"), "mtagd") {
			t.Error("purge has left something")
		}
	}
}

// debian is a copy of this machine's file system: what is written to it is only in the copy, and gone after the test.
type debian struct {
	*testing.T
	anchor *exec.Cmd // its mount namespace
	root   string    // in there
}

func copyDebian(t *testing.T) *debian {
	t.Helper()
	if _, err := testenv.Find("dpkg"); err != nil || os.Getuid() != 0 {
		testenv.Skip(t, "packages can be installed only as root on Debian")
	}
	dir, err := os.MkdirTemp("/dev/shm", "mtagd-debian") // a layer cannot be on another overlay
	if err != nil {
		testenv.Skip(t, "packages can be installed only where there is /dev/shm")
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	d := &debian{T: t, root: filepath.Join(dir, "root")}
	script := `set -e; mkdir upper work root
mount -t overlay overlay -o lowerdir=/,upperdir=$PWD/upper,workdir=$PWD/work root
mount --bind /proc root/proc; mount --rbind /dev root/dev; mount -t tmpfs tmp root/run
echo mounted; exec sleep 600`
	d.anchor = exec.Command("unshare", "--mount", "sh", "-c", script)
	d.anchor.Dir = dir
	var failed strings.Builder
	d.anchor.Stderr = &failed
	out, err := d.anchor.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := d.anchor.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		d.anchor.Process.Kill()
		d.anchor.Wait()
	})
	if line := make([]byte, len("mounted")); true {
		if _, err := io.ReadFull(out, line); err != nil {
			d.anchor.Wait()
			testenv.Skip(t, "packages can be installed only where overlays can be mounted: "+failed.String())
		}
	}
	return d
}

const debianPath = "PATH=/usr/sbin:/usr/bin:/sbin:/bin"

// command is one in the copy. It finds files of this machine, too, because a directory of the machine has not changed in
// the copy.
func (d *debian) command(arguments ...string) *exec.Cmd {
	cmd := exec.Command("nsenter", append([]string{fmt.Sprintf("--mount=/proc/%d/ns/mnt", d.anchor.Process.Pid), "chroot", d.root}, arguments...)...)
	cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive", debianPath)
	return cmd
}

func (d *debian) run(arguments ...string) string {
	d.Helper()
	out, err := d.command(arguments...).CombinedOutput()
	if err != nil {
		d.Fatalf("%v: %v: %s", arguments, err, out)
	}
	return string(out)
}

// path is where this process sees a file of the copy.
func (d *debian) path(name string) string {
	return fmt.Sprintf("/proc/%d/root%s%s", d.anchor.Process.Pid, d.root, name)
}

func (d *debian) has(name string) bool {
	_, err := os.Lstat(d.path(name))
	return err == nil
}

func (d *debian) read(name string) string {
	text, err := os.ReadFile(d.path(name))
	if err != nil {
		d.Error(err)
	}
	return string(text)
}

func (d *debian) write(name, text string, mode os.FileMode) {
	d.Helper()
	path := d.path(name)
	if err := os.RemoveAll(path); err != nil {
		d.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), mode); err != nil {
		d.Fatal(err)
	}
	if err := os.Chmod(path, mode); err != nil {
		d.Fatal(err)
	}
}
