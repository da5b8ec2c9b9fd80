// Command release makes the files of a release: static binaries, packages, a container image, and a list of what is in them.
// The same commit makes the same bytes on any machine: nothing of the machine, the time or the directory is in them.
//
//	main.go   the steps, and the list of modules
//	smoke.go  a first run of each binary
//	image.go  the container image
package main

import (
	"bytes"
	"compress/gzip"
	"debug/buildinfo"
	"encoding/json"
	"flag"
	"fmt"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"time"
)

// release is what is made.
type release struct {
	out, version, commit, pgo string
	time                      time.Time // of the commit
	architectures             []string
}

func main() {
	log.SetFlags(0)
	r := release{}
	var architectures string
	flag.StringVar(&r.out, "out", "bin/release", "directory for the files")
	flag.StringVar(&architectures, "arch", "amd64,arm64", "architectures")
	flag.StringVar(&r.pgo, "pgo", "auto", "off: build faster, without the profile")
	root := flag.String("root", "..", "directory of the source")
	flag.StringVar(&r.version, "version", "", "version; by default that of the first release in CHANGELOG.md, and the commit if there are later changes")
	flag.Parse()
	if err := os.Chdir(*root); err != nil {
		log.Fatal("release: ", err)
	}
	r.architectures = strings.Split(architectures, ",")
	if err := r.make(); err != nil {
		log.Fatal("release: ", err)
	}
}

func (r *release) make() error {
	clear := func() error { return os.RemoveAll(r.out) }
	for _, step := range []func() error{r.identify, clear, r.build, r.smoke, r.document, r.packages, r.image, r.sbom} {
		if err := step(); err != nil {
			return err
		}
	}
	return os.RemoveAll(r.dir())
}

// identify finds the version, and the commit with its time.
func (r *release) identify() error {
	changes, err := os.ReadFile("CHANGELOG.md")
	if err != nil {
		return err
	}
	out, err := exec.Command("git", "log", "-1", "--format=%H %ct").Output()
	if err != nil {
		return fmt.Errorf("git log: %w", err)
	}
	var seconds int64
	if _, err := fmt.Sscan(string(out), &r.commit, &seconds); err != nil {
		return err
	}
	r.time = time.Unix(seconds, 0).UTC()
	heading := regexp.MustCompile(`(?ms)^## (Unreleased.*?^## )?(\d+\.\d+\.\d+)`).FindSubmatch(changes)
	if r.version == "" && heading != nil {
		r.version = string(heading[2])
		if len(heading[1]) > 0 { // a package that a release would not take for itself
			r.version += r.time.Format("+20060102150405.") + r.commit[:8]
		}
	}
	return nil
}

// dir has the files that only later steps need.
func (r *release) dir() string { return filepath.Join(r.out, "build") }

func (r *release) binary(architecture string) string {
	return filepath.Join(r.out, fmt.Sprintf("mtagd-%s-linux-%s", r.version, architecture))
}

// build makes static binaries. Settings of the machine that would change them are left out.
func (r *release) build() error {
	for _, architecture := range r.architectures {
		cmd := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-pgo="+r.pgo,
			"-ldflags=-s -w -X main.release="+r.version+" -X main.commit="+r.commit, "-o", r.binary(architecture), "./cmd/mtagd")
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH="+architecture, "GOFLAGS=", "GOAMD64=v1", "GOARM64=v8.0", "GOEXPERIMENT=", "GOWORK=off")
		if err := run(cmd); err != nil {
			return err
		}
	}
	return nil
}

// document has the binary write its man pages and completions.
func (r *release) document() error {
	host := r.binary(runtime.GOARCH)
	if !slices.Contains(r.architectures, runtime.GOARCH) {
		return fmt.Errorf("the architecture of this machine, %s, is not among those built: nothing can write the man pages", runtime.GOARCH)
	}
	pages := filepath.Join(r.dir(), "man")
	if err := os.MkdirAll(pages, 0o755); err != nil {
		return err
	}
	manual := exec.Command(host, "man", pages)
	manual.Env = []string{"COLUMNS=80"} // on any machine
	if err := run(manual); err != nil {
		return err
	}
	for _, shell := range []string{"bash", "zsh", "fish"} {
		script, err := exec.Command(host, "completion", shell).Output()
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(r.dir(), shell), script, 0o644); err != nil {
			return err
		}
	}
	names, err := filepath.Glob(filepath.Join(pages, "*.1"))
	if err != nil {
		return err
	}
	for _, name := range names {
		text, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		if err := os.WriteFile(name+".gz", compress(text), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// compress is gzip without a name and a time. The best level would take three times as long for one percent.
func compress(text []byte) []byte {
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	w.Write(text) // a buffer takes everything
	w.Close()
	return out.Bytes()
}

// packages makes deb and rpm packages with nfpm.
func (r *release) packages() error {
	pattern, err := os.ReadFile("deploy/nfpm.yaml")
	if err != nil {
		return err
	}
	for _, architecture := range r.architectures {
		values := map[string]string{
			"ARCH": architecture, "VERSION": r.version, "BINARY": r.binary(architecture), "OUT": r.dir(), "MTIME": r.time.Format(time.RFC3339),
		}
		config := filepath.Join(r.dir(), architecture+".yaml")
		text := os.Expand(string(pattern), func(name string) string { return values[name] })
		if err := os.WriteFile(config, []byte(text), 0o644); err != nil {
			return err
		}
		for _, kind := range []string{"deb", "rpm"} {
			name := filepath.Join(r.out, fmt.Sprintf("mtagd-%s-%s.%s", r.version, architecture, kind))
			cmd := exec.Command("go", "tool", "-modfile=tools/go.mod", "nfpm", "package", "-f", config, "-p", kind, "-t", name)
			cmd.Env = append(os.Environ(), fmt.Sprintf("SOURCE_DATE_EPOCH=%d", r.time.Unix()))
			if err := run(cmd); err != nil {
				return err
			}
		}
	}
	return nil
}

// run runs a program; its output is part of the error.
func run(cmd *exec.Cmd) error {
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", strings.Join(cmd.Args, " "), err, out)
	}
	return nil
}

// sbom writes what the binary is made of, as it says itself, in CycloneDX 1.6.
func (r *release) sbom() error {
	info, err := buildinfo.ReadFile(r.binary(r.architectures[0]))
	if err != nil {
		return err
	}
	type component struct {
		Type    string `json:"type"`
		Name    string `json:"name"`
		Version string `json:"version"`
		PURL    string `json:"purl,omitempty"`
	}
	components := []component{{"library", "std", info.GoVersion[len("go"):], "pkg:golang/std@" + info.GoVersion[len("go"):]}}
	for _, m := range info.Deps {
		if m.Replace != nil {
			m = m.Replace
		}
		components = append(components, component{"library", m.Path, m.Version, fmt.Sprintf("pkg:golang/%s@%s", m.Path, m.Version)})
	}
	text, err := json.MarshalIndent(map[string]any{
		"bomFormat": "CycloneDX", "specVersion": "1.6", "version": 1,
		"metadata":   map[string]any{"timestamp": r.time.Format(time.RFC3339), "component": component{"application", "mtagd", r.version, ""}},
		"components": components,
	}, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(r.out, fmt.Sprintf("mtagd-%s.cdx.json", r.version)), append(text, '\n'), 0o644)
}
