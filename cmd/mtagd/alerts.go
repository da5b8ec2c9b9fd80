package main

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/dustin/go-humanize"
)

// check finds one thing that is wrong with a service. mtagd doctor, /readyz and the alerts of Prometheus share the checks:
// deploy/alerts.yml is generated from them (TestAlertsFile). A new one needs a page in deploy/runbook.md, and a test in
// deploy/alerts_test.yml.
type check struct {
	name    string // of the alert, and of the page in the runbook
	urgency urgency
	what    string // is wrong, with a {unit} where the value goes
	do      string
	is      func(m metrics, now float64) (value float64, wrong bool) // judges by the metrics of this moment; nil if that needs their history
	expr    string                                                   // the same in Prometheus, which has the history
	hold    string                                                   // how long it must be true before the alert fires
}

// units write a value: {unit} in the text of a check, in an alert and in words.
var units = []struct {
	unit, alert string
	words       func(value float64) string
}{
	{"{bytes}", "{{ $value | humanize1024 }}B", func(v float64) string { return humanize.IBytes(uint64(v)) }},
	{"{time}", "{{ $value | humanizeDuration }}", func(v float64) string {
		if days := v / 86400; math.Abs(days) >= 2 {
			return fmt.Sprintf("%.0f days", days)
		}
		return (time.Duration(v) * time.Second).String()
	}},
	{"{n}", "{{ $value | humanize }}", func(v float64) string { return fmt.Sprintf("%.0f", v) }},
}

// words says what is wrong, with details if there are any.
func (c check) words(value float64, detail string) string {
	text := c.what
	for _, u := range units {
		text = strings.ReplaceAll(text, u.unit, u.words(value))
	}
	if detail != "" {
		text += ": " + detail
	}
	return text
}

func (c check) runbook() string { return "deploy/runbook.md#" + strings.ToLower(c.name) }

func checkNamed(name string) check {
	return checks[slices.IndexFunc(checks, func(c check) bool { return c.name == name })]
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

// checks are ordered as the runbook is.
var checks = []check{
	{
		name: checkDown, urgency: page, what: "the service does not answer", // or Prometheus has no target, or another program's
		do:   "start it: systemctl start mtagd-http.socket mtagd-https.socket mtagd-admin.socket mtagd; its log: journalctl -u mtagd",
		expr: `up{job="mtagd"} unless on (instance) mtagd_ready{job="mtagd"} or on (job) absent(mtagd_ready{job="mtagd"})`, hold: "2m",
	},
	{
		name: checkNotReady, urgency: page, what: "no events are accepted",
		do: "look at the disk or the database that the reason names; where it says so, restart the service",
		is: func(m metrics, _ float64) (float64, bool) {
			ready, known := m.least("mtagd_ready")
			return 0, known && ready == 0
		},
		expr: `mtagd_ready == 0`, hold: "1m",
	},
	{
		name: "MtagdRestarting", urgency: page, what: "the service has restarted {n} times in two hours", // the watchdog does so at most once in ten minutes
		do:   "find the last words of each process: journalctl -u mtagd",
		expr: `changes(process_start_time_seconds{job="mtagd"}[2h]) > 3`,
	},
	{
		name: "MtagdCommitsHang", urgency: page, what: "events wait, and none was written for {time}",
		do: "look for what keeps the disk busy, or breaks it: dmesg, iostat -x 1",
		is: func(m metrics, now float64) (float64, bool) {
			age := now - m.most("mtagd_journal_last_commit_timestamp_seconds")
			return age, age > 30 && m.most("mtagd_journal_queue_bytes") > 0
		},
		expr: `time() - mtagd_journal_last_commit_timestamp_seconds > 30 and mtagd_journal_queue_bytes > 0`, hold: "1m",
	},
	{
		name: "MtagdCommitsSlow", urgency: ticket, what: "more than one of a hundred commits takes over 0.25 seconds",
		do: "give the data directory a faster disk, or one of its own: iostat -x 1 and pidstat -d 1 say who else uses it",
		is: func(m metrics, _ float64) (float64, bool) {
			all := m.sum("mtagd_journal_commit_duration_seconds_count", "")
			return 0, all > 0 && m.sum("mtagd_journal_commit_duration_seconds_bucket", `le="0.25"`) < 0.99*all
		},
		expr: `histogram_quantile(0.99, rate(mtagd_journal_commit_duration_seconds_bucket[5m])) > 0.25`, hold: "15m",
	},
	{
		name: "MtagdServerErrors", urgency: page, what: "more than one of a hundred requests get a 5xx",
		do: "look for refused, engine failed, partner API request failed and panic in the log",
		is: func(m metrics, _ float64) (float64, bool) {
			all := m.sum("mtagd_http_requests_total", "")
			return 0, m.sum("mtagd_http_requests_total", `code="5`) > 0.01*all
		},
		expr: `sum by (instance, surface) (rate(mtagd_http_requests_total{code=~"5.."}[5m]))
> 0.01 * sum by (instance, surface) (rate(mtagd_http_requests_total[5m]))`, hold: "10m",
	},
	{
		name: "MtagdPanics", urgency: ticket, what: "requests end in a panic",
		do:   "report the stack of the log line panic; if it is many, go back to the version before",
		is:   over(0, "mtagd_panics_total", ""),
		expr: `increase(mtagd_panics_total[15m]) > 0`,
	},
	{
		name: checkDiskLow, urgency: page, what: "the disk has {bytes} left",
		do: "free some space, or enlarge the disk: events are refused below 128 MiB", // reserve
		is: func(m metrics, _ float64) (float64, bool) {
			free, known := m.least("mtagd_disk_free_bytes")
			return free, known && free < 10*m.most("mtagd_disk_reserve_bytes")
		},
		expr: `min by (instance) (mtagd_disk_free_bytes) < on (instance) 10 * mtagd_disk_reserve_bytes`, hold: "5m",
	},
	{
		name: "MtagdDiskFullSoon", urgency: ticket, what: "the disk will be full in three days",
		do:   "find who sends so much (mtagd_merchant_event_bytes), or enlarge the disk",
		expr: `min by (instance) (predict_linear(mtagd_disk_free_bytes[6h], 3 * 86400)) < on (instance) mtagd_disk_reserve_bytes`, hold: "1h",
	},
	{
		name: checkDamage, urgency: page, what: "data is damaged", // until mtagd repair has made a new data directory
		do: "mtagd verify says what; find the cause (dmesg, smartctl -a), then restore a backup beside, or make a new directory with mtagd repair",
		is: func(m metrics, _ float64) (float64, bool) {
			return 0, m.most("mtagd_damaged_chunks") > 0 || m.most("mtagd_scrub_findings") > 0 || m.most("mtagd_impaired") > 0
		},
		expr: `mtagd_damaged_chunks > 0 or on (instance) mtagd_scrub_findings > 0 or on (instance) mtagd_impaired > 0`,
	},
	{
		name: "MtagdScrubOld", urgency: ticket, what: "not all of the data was checked for a week",
		do: "run mtagd verify at a quiet time, and look for the data was not verified in the log",
		is: func(m metrics, now float64) (float64, bool) {
			at := max(m.most("mtagd_scrub_last_finished_timestamp_seconds"), m.most("process_start_time_seconds"))
			return 0, at > 0 && now-at > 7*86400
		},
		// 0: none has ended since the start. With --store the time is that of any node, and older than this process.
		expr: `time() - (mtagd_scrub_last_finished_timestamp_seconds != 0) > 7 * 86400
or (time() - mtagd_scrub_last_finished_timestamp_seconds > 7 * 86400)
and on (instance) time() - process_start_time_seconds{job="mtagd"} > 7 * 86400`, hold: "1h",
	},
	{
		name: checkBackupOld, urgency: ticket, what: "no backup has succeeded for {time}",
		do: "let the service's user, and ReadWritePaths= of its unit, write to the destination, and look for backup failed in the log",
		is: func(m metrics, now float64) (float64, bool) {
			late := 2*m.most("mtagd_backup_interval_seconds") + 600
			age := now - max(m.most("mtagd_backup_last_success_timestamp_seconds"), m.most("process_start_time_seconds")) // without one, since the start
			return age, late > 600 && age > late
		},
		expr: `time() - mtagd_backup_last_success_timestamp_seconds > 2 * mtagd_backup_interval_seconds + 600`, hold: "1h", // a first backup may take long
	},
	{
		name: "MtagdBackupFails", urgency: ticket, what: "{n} backups have failed",
		do:   "look for backup failed in the log",
		is:   over(2, "mtagd_backup_failures_total", ""),
		expr: `increase(mtagd_backup_failures_total[1h]) >= 3`,
	},
	{
		name: "MtagdIndexBehind", urgency: ticket, what: "events are recorded, but the index is not written",
		do:   "look for the index in the log, and at the disk",
		expr: `increase(mtagd_index_merge_duration_seconds_count[15m]) == 0 and on (instance) delta(mtagd_index_events[15m]) > 0`, hold: "5m",
	},
	{
		name: "MtagdRemovalsFail", urgency: ticket, what: "events that must go cannot be removed",
		do: "mtagd merchant removals and the receipts of erasures say why",
		is: func(m metrics, now float64) (float64, bool) {
			oldest := m.most("mtagd_erasure_oldest_timestamp_seconds")
			return 0, m.most("mtagd_removals_failing") > 0 || oldest > 0 && now-oldest > 3600
		},
		expr: `sum without (kind) (mtagd_removals_failing) > 0 or (time() - (mtagd_erasure_oldest_timestamp_seconds > 0)) > 3600`, hold: "15m",
	},
	{
		name: "MtagdFlood", urgency: ticket, what: "{n} requests a second are refused",
		do:   "suspend the tag that the log line refused names, or raise the limit",
		expr: `sum by (instance, cause) (rate(mtagd_refused_total{cause=~"address_.*|merchant_.*|partner_.*|body_memory|answer_memory|connections"}[5m])) > 50`, hold: "10m",
	},
	{
		name: checkCertificate, urgency: ticket, what: "time left of a certificate: {time}",
		do: "let the service reach the CA, and the CA ports 80 and 443: it renews a month before the end",
		is: func(m metrics, now float64) (float64, bool) {
			at, known := m.least("mtagd_certificate_first_expiry_timestamp_seconds")
			return at - now, known && at-now < certificateWarning.Seconds()
		},
		expr: `mtagd_certificate_first_expiry_timestamp_seconds - time() < 14 * 86400`, hold: "1h",
	},
	{
		name: "MtagdOwnCertificate", urgency: page, what: "the base host or the client tag host has no valid certificate",
		do:   "look for certificate not issued in the log, which has the CA's words; all hosts must lead here, and the CA reach ports 80 and 443",
		is:   over(0, "mtagd_own_certificates_missing", ""),
		expr: `mtagd_own_certificates_missing > 0`, hold: "10m",
	},
	{
		name: "MtagdCertificateOrdersWait", urgency: ticket, what: "an order of a certificate has waited for {time}",
		do:   "look at the CA's limits, and whether it can be reached",
		is:   over(3600, "mtagd_certificate_orders_oldest_wait_seconds", ""),
		expr: `mtagd_certificate_orders_oldest_wait_seconds > 3600`, hold: "15m",
	},
	{
		name: "MtagdFilesRunOut", urgency: ticket, what: "nearly all file descriptors are in use",
		do: "find who has so many (ss -tn), or raise LimitNOFILE in mtagd.service",
		is: func(m metrics, _ float64) (float64, bool) {
			return 0, m.most("process_open_fds") > 0.9*m.most("process_max_fds")
		},
		expr: `process_open_fds{job="mtagd"} > 0.9 * process_max_fds{job="mtagd"}`, hold: "5m",
	},
	{
		name: "MtagdDestinationsFail", urgency: ticket, what: "{n} destinations accept no events",
		do: "nothing is lost: lastError of the destination says why; after a restore, put the old secret.key back",
		is: func(m metrics, _ float64) (float64, bool) {
			n := m.sum("mtagd_delivery_failing", "") + m.sum("mtagd_delivery_broken", "")
			return n, n > 0
		},
		expr: `mtagd_delivery_failing > 0 or mtagd_delivery_broken > 0`, hold: "1h",
	},
	{
		name: "MtagdDeadLetters", urgency: ticket, what: "destinations have refused events",
		do:   "the partner sees the answers among the deliveries, and replays them",
		is:   over(0, "mtagd_delivery_events_total", `outcome="dead"`),
		expr: `sum by (instance, type) (increase(mtagd_delivery_events_total{outcome="dead"}[1h])) > 0`,
	},
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
