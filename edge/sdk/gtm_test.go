package sdk_test

import (
	"encoding/json"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// templateSections returns the sections of the template for Google Tag Manager by name.
func templateSections(t *testing.T) map[string]string {
	t.Helper()
	file, err := os.ReadFile("gtm/template.tpl")
	if err != nil {
		t.Fatal(err)
	}
	names := regexp.MustCompile(`(?m)^___(\w+)___$`)
	sections := map[string]string{}
	at := names.FindAllStringSubmatchIndex(string(file), -1)
	for i, m := range at {
		end := len(file)
		if i+1 < len(at) {
			end = at[i+1][0]
		}
		sections[string(file[m[2]:m[3]])] = strings.TrimSpace(string(file[m[1]:end]))
	}
	return sections
}

// sandbox stands in for Google Tag Manager's: the functions that a template can require, and its own scenarios.
const sandbox = `
	window.consented = { analytics_storage: false, ad_storage: false };
	const listeners = [];
	window.update = (name, granted) => { consented[name] = granted; listeners.forEach(([to, call]) => to == name && call(name, granted)) };
	const apis = {
		addConsentListener: (name, call) => listeners.push([name, call]),
		isConsentGranted: (name) => !!consented[name],
		encodeUriComponent: encodeURIComponent,
		makeTableMap: (rows, key, value) => rows.length ? Object.fromEntries(rows.map((row) => [row[key], row[value]])) : null,
		createArgumentsQueue: (name, array) => {
			window[array] = window[array] || [];
			return (window[name] = window[name] || function () { window[array].push(arguments) });
		},
		injectScript: (src, onload, onerror) => document.head.append(Object.assign(document.createElement('script'), { src, onload, onerror })),
	};
	window.template = (data, using = apis) => new Promise((resolve, reject) =>
		new Function('require', 'data', 'Object', 'window', 'document', CODE)((name) => using[name], Object.assign({ gtmOnSuccess: () => resolve('success'), gtmOnFailure: () => reject('failure') }, data)));
	window.scenario = async (code) => {
		const called = {}, own = Object.assign({}, apis, { createArgumentsQueue: () => () => {}, injectScript: () => { throw 'not mocked' } });
		const spy = (name) => { const f = own[name]; own[name] = (...all) => { called[name] = true; return f(...all) } };
		const assert = (ok) => { if (!ok) throw new Error('failed: ' + code) };
		let run;
		new Function('mock', 'runCode', 'assertThat', 'assertApi', code)(
			(name, f) => (own[name] = f),
			(data) => { Object.keys(own).forEach(spy); template(Object.assign(data, { gtmOnSuccess: () => (called.gtmOnSuccess = true) }), own) },
			(value) => ({ isEqualTo: (other) => assert(value === other) }),
			(name) => ({ wasCalled: () => assert(called[name]), wasNotCalled: () => assert(!called[name]) }));
		return 'ok';
	};
`

// A container installs the tag with the template, follows the consent of the container and sends its events.
func TestTheTemplateForGoogleTagManager(t *testing.T) {
	sections := templateSections(t)
	var permissions []struct {
		Instance struct{ Key struct{ PublicID string } }
	}
	var info, parameters any
	for name, into := range map[string]any{"INFO": &info, "TEMPLATE_PARAMETERS": &parameters, "WEB_PERMISSIONS": &permissions} {
		if err := json.Unmarshal([]byte(sections[name]), into); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
	}
	// Each function needs the permission of its name.
	code := sections["SANDBOXED_JS_FOR_WEB_TEMPLATE"]
	needs := map[string]string{"injectScript": "inject_script", "createArgumentsQueue": "access_globals", "isConsentGranted": "access_consent",
		"addConsentListener": "access_consent", "encodeUriComponent": "", "makeTableMap": ""}
	for _, m := range regexp.MustCompile(`require\('(\w+)'\)`).FindAllStringSubmatch(code, -1) {
		need, known := needs[m[1]]
		has := false
		for _, p := range permissions {
			has = has || p.Instance.Key.PublicID == need
		}
		if !known || need != "" && !has {
			t.Errorf("%s needs the permission %q", m[1], need)
		}
	}
	if bad := regexp.MustCompile("`|\\bnew\\b|\\bthis\\b|\\bclass\\b|\\bwindow\\b|=> \\{ return").FindString(code); bad != "" {
		t.Errorf("the sandbox does not allow %q", bad)
	}

	w := newWorld(t)
	text, err := json.Marshal(code)
	if err != nil {
		t.Fatal(err)
	}
	w.page("/", "<script>"+strings.Replace(sandbox, "CODE", strings.ReplaceAll(string(text), "</", `<\/`), 1)+"</script>")
	tab := w.visit("/?utm_source=letter&gclid=g1")
	scenarios := regexp.MustCompile(`(?m)^- name: (.*)\n  code: \|-\n((?:    .*\n?)+)`).FindAllStringSubmatch(sections["TESTS"]+"\n", -1)
	if len(scenarios) < 2 {
		t.Fatalf("%d scenarios", len(scenarios))
	}
	for _, s := range scenarios {
		script, err := json.Marshal(s[2])
		if err != nil {
			t.Fatal(err)
		}
		if got := tab.get(`scenario(` + string(script) + `)`); got != "ok" {
			t.Errorf("%s: %s", s[1], got)
		}
	}
	install := `template({ does: 'install', host: '` + w.gate.url(tagHost) + `', tagId: '` + w.tag + `', parts: 'attribution' })`
	if got := tab.get(install); got != "success" {
		t.Fatal(got)
	}
	tab.get(`template({ does: 'event', event: 'Purchase', fields: [{ name: 'value', value: '89' }] })`)
	tab.wantNoTrace()
	tab.do(`update('analytics_storage', true)`)
	var raw []string
	for _, e := range w.want("PageView", "Purchase") {
		if e.RawData["utm_source"] != "letter" || e.RawData["gclid"] != nil || consentOf(e)["ad_storage"] != "denied" {
			t.Errorf("%s: %v", e.EventName, e.RawData)
		}
		if e.RawData["value"] == "89" {
			raw = append(raw, e.EventName)
		}
	}
	if !slices.Equal(raw, []string{"Purchase"}) {
		t.Errorf("value is in %v", raw)
	}
	tab.wantNothingStored()
	tab.do(`update('analytics_storage', false)`)
	tab.wantNoTrace()
}
