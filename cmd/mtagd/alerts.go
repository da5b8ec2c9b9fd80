package main

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/goccy/go-yaml"

	"mtagd/deploy"
)

// check finds one thing that is wrong with a service. mtagd doctor, /readyz and Prometheus share the checks: each is an alert
// of deploy/alerts.yml. A new one needs a page in deploy/runbook.md, and a test in deploy/alerts_test.yml.
type check struct {
	name    string // of the alert, and of the page in the runbook
	urgency urgency
	what    string // is wrong, as the alert has it: with a template where the value goes
	do      string
	is      func(m metrics, now float64) (value float64, wrong bool) // judges by the metrics of this moment; nil if that needs their history
}

// checks are the alerts in the order of the file, which is that of the runbook.
var checks = sync.OnceValue(func() (all []check) {
	var file struct {
		Groups []struct {
			Rules []struct {
				Alert       string
				Labels      struct{ Severity urgency }
				Annotations struct{ Summary, Description string }
			}
		}
	}
	if err := yaml.Unmarshal(deploy.Alerts, &file); err != nil {
		panic(err) // it is a part of the program
	}
	for _, r := range file.Groups[0].Rules {
		what := strings.TrimPrefix(r.Annotations.Summary, "mtagd{{ with $labels.instance }} at {{ . }}{{ end }}: ")
		all = append(all, check{r.Alert, r.Labels.Severity, what, r.Annotations.Description, judges[r.Alert]})
	}
	return all
})

// units write a value in words where an alert has a template for it.
var units = map[string]func(value float64) string{
	"{{ $value | humanize1024 }}B": func(v float64) string { return humanize.IBytes(uint64(v)) },
	"{{ $value | humanizeDuration }}": func(v float64) string {
		if days := v / 86400; math.Abs(days) >= 2 {
			return fmt.Sprintf("%.0f days", days)
		}
		return (time.Duration(v) * time.Second).String()
	},
	"{{ $value | humanize }}": func(v float64) string { return fmt.Sprintf("%.0f", v) },
}

// words says what is wrong, with details if there are any.
func (c check) words(value float64, detail string) string {
	text := c.what
	for template, words := range units {
		text = strings.ReplaceAll(text, template, words(value))
	}
	if detail != "" {
		text += ": " + detail
	}
	return text
}

func (c check) runbook() string { return "deploy/runbook.md#" + strings.ToLower(c.name) }

func checkNamed(name string) check {
	return checks()[slices.IndexFunc(checks(), func(c check) bool { return c.name == name })]
}

// reason is the line of /readyz that says why a check finds something.
func (c check) reason(err error) string { return c.name + ": " + oneLine(err) + "\n" }

// reasonIn returns what reason has written about a check.
func reasonIn(page string, c check) (because string, is bool) {
	for line := range strings.Lines(page) {
		if because, is := strings.CutPrefix(line, c.name+": "); is {
			return strings.TrimSpace(because), true
		}
	}
	return "", false
}

// The checks that are made without metrics, too.
const (
	checkDown        = "MtagdDown"
	checkNotReady    = "MtagdNotReady"
	checkDiskLow     = "MtagdDiskLow"
	checkDamage      = "MtagdDamage"
	checkBackupOld   = "MtagdBackupOld"
	checkCertificate = "MtagdCertificateExpires"
)

// judges find by the metrics of one moment what the alerts find. An alert without one needs their history.
var judges = map[string]func(m metrics, now float64) (value float64, wrong bool){
	checkNotReady: func(m metrics, _ float64) (float64, bool) {
		ready, known := m.least("mtagd_ready")
		return 0, known && ready == 0
	},
	"MtagdCommitsHang": func(m metrics, now float64) (float64, bool) {
		age := now - m.most("mtagd_journal_last_commit_timestamp_seconds")
		return age, age > 30 && m.most("mtagd_journal_queue_bytes") > 0
	},
	"MtagdCommitsSlow": func(m metrics, _ float64) (float64, bool) {
		all := m.sum("mtagd_journal_commit_duration_seconds_count", "")
		return 0, all > 0 && m.sum("mtagd_journal_commit_duration_seconds_bucket", `le="0.25"`) < 0.99*all
	},
	"MtagdServerErrors": func(m metrics, _ float64) (float64, bool) {
		all := m.sum("mtagd_http_requests_total", "")
		return 0, m.sum("mtagd_http_requests_total", `code="5`) > 0.01*all
	},
	"MtagdPanics": over(0, "mtagd_panics_total", ""),
	checkDiskLow: func(m metrics, _ float64) (float64, bool) {
		free, known := m.least("mtagd_disk_free_bytes")
		return free, known && free < 10*m.most("mtagd_disk_reserve_bytes")
	},
	checkDamage: func(m metrics, _ float64) (float64, bool) {
		return 0, m.most("mtagd_damaged_chunks") > 0 || m.most("mtagd_scrub_findings") > 0 || m.most("mtagd_impaired") > 0
	},
	"MtagdScrubOld": func(m metrics, now float64) (float64, bool) {
		at := max(m.most("mtagd_scrub_last_finished_timestamp_seconds"), m.most("process_start_time_seconds"))
		return 0, at > 0 && now-at > 7*86400
	},
	checkBackupOld: func(m metrics, now float64) (float64, bool) {
		late := 2*m.most("mtagd_backup_interval_seconds") + 600
		age := now - max(m.most("mtagd_backup_last_success_timestamp_seconds"), m.most("process_start_time_seconds")) // without one, since the start
		return age, late > 600 && age > late
	},
	"MtagdBackupFails": over(2, "mtagd_backup_failures_total", ""),
	"MtagdRemovalsFail": func(m metrics, now float64) (float64, bool) {
		oldest := m.most("mtagd_erasure_oldest_timestamp_seconds")
		return 0, m.most("mtagd_removals_failing") > 0 || oldest > 0 && now-oldest > 3600
	},
	checkCertificate: func(m metrics, now float64) (float64, bool) {
		at, known := m.least("mtagd_certificate_first_expiry_timestamp_seconds")
		return at - now, known && at-now < certificateWarning.Seconds()
	},
	"MtagdOwnCertificate":        over(0, "mtagd_own_certificates_missing", ""),
	"MtagdCertificateOrdersWait": over(3600, "mtagd_certificate_orders_oldest_wait_seconds", ""),
	"MtagdFilesRunOut": func(m metrics, _ float64) (float64, bool) {
		return 0, m.most("process_open_fds") > 0.9*m.most("process_max_fds")
	},
	"MtagdDestinationsFail": func(m metrics, _ float64) (float64, bool) {
		n := m.sum("mtagd_delivery_failing", "") + m.sum("mtagd_delivery_broken", "")
		return n, n > 0
	},
	"MtagdDeadLetters": over(0, "mtagd_delivery_events_total", `outcome="dead"`),
}

// over finds a sum of series above a limit.
func over(limit float64, name, label string) func(metrics, float64) (float64, bool) {
	return func(m metrics, _ float64) (float64, bool) {
		sum := m.sum(name, label)
		return sum, sum > limit
	}
}

// What is in the checks above, for files that doctor looks at without metrics.
const (
	certificateWarning = 14 * 24 * time.Hour
	leastDisk          = 10 * reserve // bytes
)

// metrics are the values of all series, by name and labels as /metrics has them.
type metrics map[string]float64

func parseMetrics(text string) metrics {
	m := metrics{}
	for line := range strings.Lines(text) {
		at := strings.LastIndexByte(line, ' ')
		if value, err := strconv.ParseFloat(strings.TrimSpace(line[at+1:]), 64); at > 0 && line[0] != '#' && err == nil {
			m[line[:at]] = value
		}
	}
	return m
}

// of returns the values of a metric's series that have a label, or the beginning of one; "": of all.
func (m metrics) of(name, label string) (values []float64) {
	for series, value := range m {
		if bare, labels, _ := strings.Cut(series, "{"); bare == name && strings.Contains(labels, label) {
			values = append(values, value)
		}
	}
	return values
}

func (m metrics) sum(name, label string) (sum float64) {
	for _, v := range m.of(name, label) {
		sum += v
	}
	return sum
}

// most is 0 without series.
func (m metrics) most(name string) float64 {
	return slices.Max(append(m.of(name, ""), 0))
}

func (m metrics) least(name string) (least float64, known bool) {
	values := m.of(name, "")
	return slices.Min(append(values, math.Inf(1))), len(values) > 0
}
