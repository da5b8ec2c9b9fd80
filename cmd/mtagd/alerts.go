package main

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/dustin/go-humanize"
)

// alertChecks are the rules of deploy/alerts.yml, as far as one look at the metrics tells: rates count from the start of the server.
// is returns what is wrong, or "". Those without it need a history.
var alertChecks = []struct {
	name    string
	urgency urgency
	is      func(m metrics, now float64) string
}{
	{"MtagdDown", page, nil},     // checkRunning
	{"MtagdNotReady", page, nil}, // checkRunning, which says why
	{"MtagdRestarting", page, nil},
	{"MtagdCommitsHang", page, func(m metrics, now float64) string {
		return when(now-m.most("mtagd_journal_last_commit_timestamp_seconds") > 30 && m.most("mtagd_journal_queue_bytes") > 0, "events wait, and none was written for 30 seconds")
	}},
	{"MtagdCommitsSlow", ticket, func(m metrics, _ float64) string {
		all := m.sum("mtagd_journal_commit_duration_seconds_count")
		return when(all > 0 && m.sum(`mtagd_journal_commit_duration_seconds_bucket{le="0.25"}`) < 0.99*all, "more than one of a hundred commits has taken over 0.25 seconds")
	}},
	{"MtagdServerErrors", page, func(m metrics, _ float64) string {
		failed, all := 0.0, 0.0
		for series, n := range m {
			if strings.HasPrefix(series, "mtagd_http_requests_total{") {
				all += n
				if strings.Contains(series, `code="5`) {
					failed += n
				}
			}
		}
		return when(failed > 0.01*all, "%.0f of %.0f requests got a 5xx", failed, all)
	}},
	{"MtagdPanics", ticket, func(m metrics, _ float64) string {
		n := m.sum("mtagd_panics_total")
		return when(n > 0, "%.0f requests have ended in a panic", n)
	}},
	{"MtagdDiskLow", page, func(m metrics, _ float64) string {
		free, ok := m.least("mtagd_disk_free_bytes")
		return when(ok && free < 10*m.most("mtagd_disk_reserve_bytes"), "the disk has %s left", humanize.IBytes(uint64(free)))
	}},
	{"MtagdDiskFullSoon", ticket, nil},
	{"MtagdDamage", page, func(m metrics, _ float64) string {
		return when(m.most("mtagd_damaged_chunks") > 0 || m.most("mtagd_scrub_findings") > 0 || m.most("mtagd_impaired") > 0, "data is damaged")
	}},
	{"MtagdScrubOld", ticket, func(m metrics, now float64) string {
		at := max(m.most("mtagd_scrub_last_finished_timestamp_seconds"), m.most("process_start_time_seconds"))
		return when(at > 0 && now-at > 7*86400, "not all of the data was checked for a week")
	}},
	{"MtagdBackupOld", ticket, func(m metrics, now float64) string {
		every := m.most("mtagd_backup_interval_seconds")
		age := now - m.most("mtagd_backup_last_success_timestamp_seconds")
		return when(every > 0 && age > 2*every+600 && now-m.most("process_start_time_seconds") > 2*every+600, "no backup has succeeded for %s", since(age))
	}},
	{"MtagdBackupFails", ticket, func(m metrics, _ float64) string {
		n := m.sum("mtagd_backup_failures_total")
		return when(n >= 3, "%.0f backups have failed", n)
	}},
	{"MtagdIndexBehind", ticket, nil},
	{"MtagdRemovalsFail", ticket, func(m metrics, now float64) string {
		oldest := m.most("mtagd_erasure_oldest_timestamp_seconds")
		return when(m.most("mtagd_removals_failing") > 0 || oldest > 0 && now-oldest > 3600, "events that must go cannot be removed")
	}},
	{"MtagdDestinationsFail", ticket, func(m metrics, _ float64) string {
		n := m.sum("mtagd_delivery_failing") + m.sum("mtagd_delivery_broken")
		return when(n > 0, "%.0f destinations of events take nothing", n)
	}},
	{"MtagdDeadLetters", ticket, func(m metrics, _ float64) string {
		n := 0.0
		for series, value := range m {
			if strings.HasPrefix(series, "mtagd_delivery_events_total{") && strings.Contains(series, `outcome="dead"`) {
				n += value
			}
		}
		return when(n > 0, "destinations have refused %.0f events", n)
	}},
	{"MtagdFlood", ticket, nil},
	{"MtagdCertificateExpires", ticket, func(m metrics, now float64) string {
		at, ok := m.least("mtagd_certificate_first_expiry_timestamp_seconds")
		return when(ok && at-now < certificateWarning.Seconds(), "a certificate ends in %s", since(at-now))
	}},
	{"MtagdCertificateOrdersWait", ticket, func(m metrics, _ float64) string {
		wait := m.most("mtagd_certificate_orders_oldest_wait_seconds")
		return when(wait > 3600, "an order of a certificate has waited for %s", since(wait))
	}},
	{"MtagdFilesRunOut", ticket, func(m metrics, _ float64) string {
		return when(m.most("process_open_fds") > 0.9*m.most("process_max_fds"), "nearly as many connections and files are open as may be")
	}},
}

func when(is bool, what string, values ...any) string {
	if !is {
		return ""
	}
	return fmt.Sprintf(what, values...)
}

func since(seconds float64) string { return (time.Duration(seconds) * time.Second).String() }

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

// series calls visit with the values of a metric. The name may have labels.
func (m metrics) series(name string, visit func(float64)) {
	for series, value := range m {
		if bare, _, _ := strings.Cut(series, "{"); series == name || bare == name {
			visit(value)
		}
	}
}

func (m metrics) sum(name string) (sum float64) {
	m.series(name, func(v float64) { sum += v })
	return sum
}

// most is 0 without series.
func (m metrics) most(name string) (most float64) {
	m.series(name, func(v float64) { most = max(most, v) })
	return most
}

func (m metrics) least(name string) (least float64, ok bool) {
	least = math.Inf(1)
	m.series(name, func(v float64) { least, ok = min(least, v), true })
	return least, ok
}
