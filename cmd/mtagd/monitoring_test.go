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
	promtool(t, "test", "rules", "../../deploy/alerts_test.yml")
}

// Each alert has a test, and a page in the runbook. The runbook has no pages of other alerts.
func TestAlertsHaveTestsAndPages(t *testing.T) {
	var rules struct {
		Groups []struct {
			Rules []struct {
				Alert       string
				Annotations struct{ Summary, Runbook string }
			}
		}
	}
	readYAML(t, "alerts.yml", &rules)
	var tests struct {
		Tests []struct {
			Rules []struct{ Alertname string } `yaml:"alert_rule_test"`
		}
	}
	readYAML(t, "alerts_test.yml", &tests)
	tested := map[string]bool{}
	for _, test := range tests.Tests {
		for _, rule := range test.Rules {
			tested[rule.Alertname] = true
		}
	}
	pages := map[string]bool{}
	for _, match := range regexp.MustCompile(`(?m)^### (Mtagd\w+)$`).FindAllStringSubmatch(readDeploy(t, "runbook.md"), -1) {
		pages[match[1]] = true
	}
	for _, rule := range rules.Groups[0].Rules {
		if !tested[rule.Alert] || !pages[rule.Alert] || rule.Annotations.Runbook != "deploy/runbook.md#"+strings.ToLower(rule.Alert) {
			t.Errorf("%s: tested %v, has a page %v, names the page %s", rule.Alert, tested[rule.Alert], pages[rule.Alert], rule.Annotations.Runbook)
		}
		delete(pages, rule.Alert)
	}
	if len(pages) > 0 {
		t.Errorf("the runbook has pages of alerts that do not exist: %v", pages)
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

// A running service with backups has every metric of the alerts, of the dashboard and of the guides. The page of metrics says what each
// means, because no guide does.
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
