package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/goccy/go-yaml"

	"mtagd/store/testenv"
)

// promtool runs Prometheus's tool of that name on a file.
func promtool(t *testing.T, args ...string) {
	t.Helper()
	program := testenv.Program(t, "promtool", "../../bin/promtool") // where make promtool puts it
	if out, err := exec.Command(program, args...).CombinedOutput(); err != nil {
		t.Errorf("promtool %s: %v: %s", strings.Join(args, " "), err, out)
	}
}

func TestAlertRules(t *testing.T) {
	promtool(t, "check", "rules", "../../deploy/alerts.yml")
	// The tests need not repeat what to do.
	dir, rules := t.TempDir(), regexp.MustCompile(`(?m)^ +(description|runbook): .*\n`).ReplaceAllString(readDeploy(t, "alerts.yml"), "")
	must(t, os.WriteFile(filepath.Join(dir, "alerts.yml"), []byte(rules), 0o600))
	must(t, os.WriteFile(filepath.Join(dir, "alerts_test.yml"), []byte(readDeploy(t, "alerts_test.yml")), 0o600))
	promtool(t, "test", "rules", filepath.Join(dir, "alerts_test.yml"))
}

// Each alert has what its check needs: a severity, a text that a check can write in words, and a link to its page. It has a
// test. The runbook has no pages of other alerts.
func TestAlertsHaveTestsAndPages(t *testing.T) {
	pages := map[string]bool{}
	for _, match := range regexp.MustCompile(`(?m)^### (Mtagd\w+)$`).FindAllStringSubmatch(readDeploy(t, "runbook.md"), -1) {
		pages[match[1]] = true
	}
	alerts, tests := readDeploy(t, "alerts.yml"), readDeploy(t, "alerts_test.yml")
	for _, c := range checks() {
		if !strings.Contains(tests, "alertname: "+c.name+"\n") || !pages[c.name] {
			t.Errorf("%s: has no test, or no page: %v", c.name, pages[c.name])
		}
		if c.urgency != page && c.urgency != ticket || strings.Contains(c.words(1, ""), "{{") || c.do == "" || !strings.Contains(alerts, "runbook: "+c.runbook()+"\n") {
			t.Errorf("not a check: %+v", c)
		}
		delete(pages, c.name)
	}
	if len(pages) > 0 {
		t.Errorf("the runbook has pages of alerts that do not exist: %v", pages)
	}
}

// A check reads no metric that its alert does not.
func TestChecksReadWhatAlertsRead(t *testing.T) {
	var file struct {
		Groups []struct {
			Rules []struct{ Alert, Expr string }
		}
	}
	readYAML(t, "alerts.yml", &file)
	exprs := map[string]string{}
	for _, r := range file.Groups[0].Rules {
		exprs[r.Alert] = r.Expr
	}
	for name := range judges {
		if exprs[name] == "" {
			t.Errorf("there is no alert %s", name)
		}
	}
	text, err := os.ReadFile("alerts.go")
	must(t, err)
	source := string(text)
	for _, match := range regexp.MustCompile(`(?m)^\t(check\w+) += "(Mtagd\w+)"$`).FindAllStringSubmatch(source, -1) {
		source = strings.ReplaceAll(source, "\n\t"+match[1]+": ", "\n\t\""+match[2]+"\": ")
	}
	judged := 0
	for _, entry := range regexp.MustCompile(`\n\t"`).Split(source, -1) {
		name, body, _ := strings.Cut(entry, `":`)
		if judges[name] == nil {
			continue
		}
		judged++
		for _, metric := range regexp.MustCompile(`"((?:mtagd|process)_[a-z_]+)"`).FindAllStringSubmatch(body, -1) {
			if !strings.Contains(exprs[name], strings.TrimSuffix(metric[1], "_count")) && metric[1] != "process_start_time_seconds" { // instead of for:
				t.Errorf("%s does not have %s", name, metric[1])
			}
		}
	}
	if judged != len(judges) {
		t.Errorf("%d of %d checks are in alerts.go", judged, len(judges))
	}
}

// dashboard is what the tests check of a Grafana dashboard.
type dashboard struct {
	SchemaVersion int
	Templating    struct{ List []struct{ Name string } }
	Panels        []struct {
		ID      int
		Type    string
		Title   string
		GridPos struct{ H, W, X, Y int }
		Targets []struct{ Expr string }
	}
}

func readDashboard(t *testing.T) (d dashboard) {
	t.Helper()
	if err := json.Unmarshal([]byte(readDeploy(t, "dashboard.json")), &d); err != nil {
		t.Fatal(err)
	}
	return d
}

// The dashboard's panels do not overlap, and its expressions are valid.
func TestDashboard(t *testing.T) {
	d := readDashboard(t)
	ids, cells := map[int]bool{}, map[[2]int]string{}
	rules := "groups:\n- name: dashboard\n  rules:\n"
	for _, p := range d.Panels {
		if ids[p.ID] || p.Title == "" || (p.Type != "row") != (len(p.Targets) > 0) || p.GridPos.X+p.GridPos.W > 24 {
			t.Errorf("panel %d %q of type %s, at %+v, with %d targets", p.ID, p.Title, p.Type, p.GridPos, len(p.Targets))
		}
		ids[p.ID] = true
		for x := range p.GridPos.W {
			for y := range p.GridPos.H {
				cell := [2]int{p.GridPos.X + x, p.GridPos.Y + y}
				if cells[cell] != "" {
					t.Fatalf("%q overlaps %q", p.Title, cells[cell])
				}
				cells[cell] = p.Title
			}
		}
		for i, target := range p.Targets {
			expr := strings.ReplaceAll(target.Expr, "$__rate_interval", "5m")
			rules += fmt.Sprintf("  - {record: 'panel_%d:%d', expr: %q}\n", p.ID, i, expr)
		}
	}
	file := filepath.Join(t.TempDir(), "rules.yml")
	if err := os.WriteFile(file, []byte(rules), 0o600); err != nil {
		t.Fatal(err)
	}
	promtool(t, "check", "rules", file)
}

// A running service with backups has every metric of the alerts, of the dashboard and of the guides. The page of metrics
// says what each means, because no guide does.
func TestMetricsOfGuidesAlertsAndDashboardExist(t *testing.T) {
	w := newSecureWorld(t, "--backup-to", t.TempDir())
	if err := w.api(w.client(), "GET", "/config", "", new(any)); err != nil { // so that the API has counted a request
		t.Fatal(err)
	}
	var page string
	for end := time.Now().Add(startTimeout); !strings.Contains(page, "\nmtagd_certificate_first_expiry_timestamp_seconds "); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("no certificate: %s", page)
		}
		resp, err := http.Get("http://" + w.admin + "/metrics")
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil {
			t.Fatal(err)
		}
		page = string(body)
	}

	exists := map[string]bool{"mtagd_merchant_event_bytes": true} // this service has no merchants
	for _, match := range regexp.MustCompile(`(?m)^# TYPE (\S+) `).FindAllStringSubmatch(page, -1) {
		exists[match[1]] = true
		if help := "# HELP " + match[1] + " "; strings.HasPrefix(match[1], "mtagd_") && !regexp.MustCompile(`(?m)^`+help+`.+\.$`).MatchString(page) {
			t.Errorf("%s has no help", match[1])
		}
	}
	sources := map[string]string{"alerts.yml": readDeploy(t, "alerts.yml")}
	guides, err := filepath.Glob("../../deploy/*.md")
	if err != nil || len(guides) < 2 {
		t.Fatal(guides, err)
	}
	for _, guide := range guides {
		sources[guide] = readDeploy(t, filepath.Base(guide))
	}
	for _, p := range readDashboard(t).Panels {
		for _, target := range p.Targets {
			sources["dashboard.json"] += target.Expr + "\n"
		}
	}
	for source, text := range sources {
		for _, name := range regexp.MustCompile(`\b(?:mtagd|process|go)_[a-z_]+\b`).FindAllString(text, -1) {
			base := regexp.MustCompile(`_(?:bucket|sum|count)$`).ReplaceAllString(name, "")
			if !exists[name] && !exists[base] {
				t.Errorf("%s uses %s, which the service does not have", source, name)
			}
		}
	}
}

func readYAML(t *testing.T, file string, into any) {
	t.Helper()
	if err := yaml.Unmarshal([]byte(readDeploy(t, file)), into); err != nil {
		t.Fatal(err)
	}
}

func readDeploy(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("../../deploy", file))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
