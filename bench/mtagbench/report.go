package main

import (
	"fmt"
	"io"
	"strings"
	"time"
)

// report is the table of a run: what was measured, what the target is, and whether it is met.
type report struct {
	sections []section
	missed   int
}

type section struct {
	title, note string
	rows        []row
}

type row struct{ what, measured, target, verdict string }

// section begins a part of the table.
func (r *report) section(title, note string) {
	r.sections = append(r.sections, section{title: title, note: note})
}

// tell adds a figure that has no target.
func (r *report) tell(what, measured string) { r.add(row{what: what, measured: measured}) }

func (r *report) add(line row) {
	last := &r.sections[len(r.sections)-1]
	last.rows = append(last.rows, line)
}

// form writes a value with its unit.
type form func(float64) string

// atLeast and atMost add a figure and judge it.
func (r *report) atLeast(what string, value, limit float64, f form) {
	r.judge(what, f(value), "≥ "+f(limit), value >= limit)
}

func (r *report) atMost(what string, value, limit float64, f form) {
	r.judge(what, f(value), "≤ "+f(limit), value <= limit)
}

func (r *report) judge(what, measured, target string, met bool) {
	verdict := "met"
	if !met {
		verdict = "**missed**"
		r.missed++
	}
	r.add(row{what, measured, target, verdict})
}

// write writes the report as Markdown.
func (r *report) write(w io.Writer) error {
	var b strings.Builder
	for _, s := range r.sections {
		if s.title != "" {
			fmt.Fprintf(&b, "\n### %s\n", s.title)
		}
		if s.note != "" {
			fmt.Fprintf(&b, "\n%s\n", s.note)
		}
		b.WriteString("\n| | measured | target | |\n|---|---:|---:|---|\n")
		for _, row := range s.rows {
			fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", row.what, row.measured, row.target, row.verdict)
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// Forms of values.

func ratio(v float64) string { return fmt.Sprintf("%.2f", v) }

func times(v float64) string { return fmt.Sprintf("%.2f ×", v) }

func percent(v float64) string { return fmt.Sprintf("%.1f %%", 100*v) }

func perSecond(v float64) string { return grouped(int(v+0.5)) + "/s" }

// milliseconds takes seconds.
func milliseconds(v float64) string {
	if v < 0.01 {
		return fmt.Sprintf("%.2f ms", v*1000)
	}
	return grouped(int(v*1000+0.5)) + " ms"
}

// microseconds takes seconds.
func microseconds(v float64) string { return fmt.Sprintf("%.1f µs", v*1e6) }

func seconds(v float64) string { return fmt.Sprintf("%.2f s", v) }

// mebibytes takes bytes.
func mebibytes(v float64) string { return fmt.Sprintf("%.0f MiB", v/(1<<20)) }

func bytesEach(v float64) string { return fmt.Sprintf("%.0f bytes", v) }

// grouped writes 1234567 as 1,234,567.
func grouped(n int) string {
	s := fmt.Sprint(n)
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// Targets of the listing.
const (
	listTarget     = 5 * time.Millisecond // p99
	listGrowth     = 2                    // times the same query on the small dataset
	listPercentile = 99
)

// listings adds what listAll measured: for each kind the p99 on the large dataset, and how often the time of the
// small one its median is. Medians, because a p99 of some hundred queries is a matter of a few
// interruptions.
func (r *report) listings(all []listing, m *manifest) {
	r.section(fmt.Sprintf("Listing, %s events", grouped(m.Large.Events)),
		fmt.Sprintf("Any page, limit and order of each kind, beside %d other merchants; compared with the same queries on %s events. "+
			"Every answer's total, length, order and names were checked.", m.Others, grouped(m.Small.Events)))
	for _, l := range all {
		p99 := quantile(l.large, listPercentile).Seconds()
		growth := float64(l.large.ValueAtQuantile(50)) / float64(l.small.ValueAtQuantile(50))
		r.atMost(l.kind.name+", p99", p99, listTarget.Seconds(), milliseconds)
		r.atMost(fmt.Sprintf("%s, p50 %s against %s", l.kind.name,
			milliseconds(quantile(l.large, 50).Seconds()), milliseconds(quantile(l.small, 50).Seconds())),
			growth, listGrowth, times)
	}
}
