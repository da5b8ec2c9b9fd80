package sdk_test

import (
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/evanw/esbuild/pkg/api"

	"mtagd/store/testenv"
)

// project makes a directory in which the npm package is installed, with these files.
func project(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	from, err := filepath.Abs("npm")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.CopyFS(filepath.Join(dir, "node_modules", "@mtagd", "tag"), os.DirFS(from)); err != nil {
		t.Fatal(err)
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// An application has the tag in its own bundle. It is the same tag: two copies on a page are one.
func TestTheNpmPackageInABundle(t *testing.T) {
	w := newWorld(t)
	dir := project(t, map[string]string{"app.js": `
		import { mtag } from '@mtagd/tag';
		import '@mtagd/tag/attribution';
		mtag('init', '` + w.gate.url(tagHost) + `?tagId=` + w.tag + `', { consent: false });
		mtag('event', 'InTheBundle', { value: 1 });
		window.agree = () => mtag('consent', true);
	`})
	built := api.Build(api.BuildOptions{EntryPoints: []string{filepath.Join(dir, "app.js")}, Bundle: true, Format: api.FormatESModule, MinifySyntax: true})
	if len(built.Errors) > 0 {
		t.Fatalf("%+v", built.Errors)
	}
	w.mu.Lock()
	w.pages["/app.mjs"] = page{string(built.OutputFiles[0].Contents), http.Header{"Content-Type": {"text/javascript"}}}
	w.mu.Unlock()
	w.page("/", `<script type="module" src="/app.mjs"></script><script async src="`+w.loader()+`"></script>`)
	tab := w.visit("/?utm_source=letter")
	w.wait("the application", func() bool { return tab.get(`typeof agree`) == "function" })
	tab.wantNoTrace()
	tab.do(`agree()`)
	for _, e := range w.want("PageView", "InTheBundle") {
		if e.RawData["utm_source"] != "letter" {
			t.Errorf("%s: %v", e.EventName, e.RawData)
		}
	}
}

// On a server the package does nothing.
func TestTheNpmPackageOnAServer(t *testing.T) {
	testenv.NotShort(t, "Node.js")
	dir := project(t, map[string]string{"server.mjs": `
		import { mtag } from '@mtagd/tag';
		for (const part of ['attribution', 'downloads', 'forms', 'ga4', 'names', 'options', 'outbound', 'scroll']) await import('@mtagd/tag/' + part);
		mtag('init', 'https://tags.example.com?tagId=x', { consent: true });
		mtag('event', 'OnTheServer');
		console.log(Object.keys(globalThis).filter((name) => /mt(rem|ag)/.test(name)).length);
	`})
	cmd := exec.Command(testenv.Program(t, "node"), "server.mjs")
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil || string(out) != "0\n" {
		t.Errorf("%v: %s", err, out)
	}
}

// The types accept what the guide allows, and an error names its cause.
func TestTheTypesOfTheNpmPackage(t *testing.T) {
	testenv.NotShort(t, "TypeScript")
	tsc, err := filepath.Abs("../../partnerapi/client/typescript/node_modules/typescript/bin/tsc")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(tsc); err != nil {
		testenv.Missing(t, "TypeScript, of make node")
	}
	dir := project(t, map[string]string{"good.ts": `
		import { mtag, type Mtag } from '@mtagd/tag';
		import '@mtagd/tag/attribution';
		interface Mine { plan: string; size?: number }
		const mine: Mine = { plan: 'gold' };
		mtag('init', 'https://x?tagId=1', { consent: { analytics_storage: 'granted' } });
		mtag('event', 'Purchase', { value: 1, plan: 'gold', muid: 'm', products: [{ id: 'p1' }] });
		mtag('event', 'Purchase', mine);
		mtag('event', 'MyEvent', mine, () => {});
		mtag('event', { type: 'Purchase', value: 1, plan: 'x' });
		mtag('event', 'Login');
		mtag('set', mine);
		const same: Mtag = mtag;
	`, "bad.ts": `
		import { mtag } from '@mtagd/tag';
		mtag('event', 'Purchase', { value: '89' });
		mtag('event', 'AddToCart', { products: [{ name: 'x' }] });
		mtag('init', 'https://x?tagId=1', {});
		mtag('evnet', 'X');
	`})
	cmd := exec.Command(testenv.Program(t, "node"), tsc, "--noEmit", "--strict", "--module", "esnext", "--moduleResolution", "bundler", "good.ts", "bad.ts")
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	for line := range strings.Lines(string(out)) {
		if !strings.HasPrefix(line, "bad.ts(") && !strings.HasPrefix(line, "  ") { // the latter explain an error
			t.Errorf("%v: %s", err, line)
		}
	}
	for _, cause := range []string{
		"Type 'string' is not assignable to type 'number'", "Property 'id' is missing", "Argument of type '{}' is not assignable", `'"evnet"' is not assignable`,
	} {
		if !strings.Contains(string(out), cause) {
			t.Errorf("no error has %q:\n%s", cause, out)
		}
	}
}
