package sdk_test

import (
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"
)

var frameworks = flag.String("frameworks", "", "a directory with the projects of npm/examples, installed; make frameworks makes it")

// The guide's code for each framework is built into a project, which is run and driven. This takes minutes.
func TestTheFrameworksOfTheGuide(t *testing.T) {
	if *frameworks == "" {
		t.Skip("make frameworks runs it")
	}
	guide, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, found := strings.Cut(string(guide), "## The npm package")
	code := regexp.MustCompile("(?s)```js\n(.*?)```").FindStringSubmatch(section)
	if !found || code == nil {
		t.Fatal("the guide has no code")
	}
	for _, tt := range []struct{ name, file string }{
		{"next", "instrumentation-client.js"}, {"nuxt", "plugins/tag.client.js"}, {"sveltekit", "src/hooks.client.js"}, {"vite", "src/tag.js"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if !strings.Contains(section, "`"+tt.file+"`") {
				t.Fatalf("the guide does not name %s", tt.file)
			}
			w := newWorld(t)
			dir := filepath.Join(*frameworks, tt.name)
			script := strings.Replace(code[1], "https://tags.example.com?tagId=cs_…", w.gate.url(tagHost)+"?tagId="+w.tag, 1)
			if tt.name == "nuxt" {
				script += "export default defineNuxtPlugin(() => {});\n"
			}
			if err := os.MkdirAll(filepath.Join(dir, filepath.Dir(tt.file)), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(dir, tt.file), []byte(script), 0o600); err != nil {
				t.Fatal(err)
			}
			listener, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			_, port, _ := net.SplitHostPort(listener.Addr().String())
			listener.Close() // the project listens there
			npm := func(what string) *exec.Cmd {
				cmd := exec.Command("npm", "run", what)
				cmd.Dir = dir
				cmd.Env = append(os.Environ(), "PORT="+port, "NEXT_TELEMETRY_DISABLED=1", "NUXT_TELEMETRY_DISABLED=1")
				cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
				return cmd
			}
			if out, err := npm("build").CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			server := npm("start")
			if err := server.Start(); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				syscall.Kill(-server.Process.Pid, syscall.SIGKILL) // with its children; fails only when it has already ended
				server.Wait()
			})
			w.wait("the server", func() bool {
				resp, err := http.Get("http://127.0.0.1:" + port + "/")
				if err == nil {
					resp.Body.Close()
				}
				return err == nil
			})
			tab := w.tab()
			tab.goTo(fmt.Sprintf("http://%s:%s/?utm_source=letter", shopHost, port))
			w.wait("the tag", func() bool { return tab.get(`!!(window.mtrem && mtrem.running)`) == "true" })
			tab.wantNoTrace()
			// Before the page is hydrated, its button does nothing.
			for end := time.Now().Add(time.Minute); len(w.events()) == 0 && time.Now().Before(end); time.Sleep(200 * time.Millisecond) {
				tab.do(`document.querySelector('button').click()`)
			}
			events := w.events()
			w.wait("the events", func() bool {
				events = w.events()
				all := names(events)
				return strings.Contains(all, "PageView") && strings.Contains(all, "Purchase") && strings.Contains(all, "Rendered")
			})
			for _, e := range events {
				if e.RawData["utm_source"] != "letter" || e.MUID != w.muidCookie().Value {
					t.Errorf("%s: %v", e.EventName, e.RawData)
				}
			}
		})
	}
}
