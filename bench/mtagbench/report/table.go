// Package report writes what a run measured: a table of figures and whether they meet their targets, and a line chart.
//
// Read in this order:
//
//	table.go  the table, as Markdown, and numbers with their units
//	chart.go  the chart, as SVG
package report

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/dustin/go-humanize"
)

// Format writes a value with its unit.
type Format func(float64) string

// Ratio writes 0.5 as 0.50.
func Ratio(v float64) string { return fmt.Sprintf("%.2f", v) }

// Times writes 2 as 2.00 ×.
func Times(v float64) string { return fmt.Sprintf("%.2f ×", v) }

// Percent writes 0.5 as 50.0 %.
func Percent(v float64) string { return fmt.Sprintf("%.1f %%", 100*v) }

// PerSecond writes 1234.5 as 1,235/s.
func PerSecond(v float64) string { return Grouped(int(v+0.5)) + "/s" }

// Milliseconds takes seconds.
func Milliseconds(v float64) string {
	if v < 0.01 {
		return fmt.Sprintf("%.2f ms", v*1000)
	}
	return Grouped(int(v*1000+0.5)) + " ms"
}

// Microseconds takes seconds.
func Microseconds(v float64) string { return fmt.Sprintf("%.1f µs", v*1e6) }

// Seconds takes seconds.
func Seconds(v float64) string { return fmt.Sprintf("%.2f s", v) }

// Mebibytes takes bytes.
func Mebibytes(v float64) string { return fmt.Sprintf("%.0f MiB", v/(1<<20)) }

// Bytes takes bytes.
func Bytes(v float64) string { return fmt.Sprintf("%.0f bytes", v) }

// Grouped writes 1234567 as 1,234,567.
func Grouped(n int) string { return humanize.Comma(int64(n)) }

// Table has sections of figures. A figure with a target is met or missed.
type Table struct {
	sections []section
	Missed   int // figures that missed their targets
}

type section struct {
	title, note string
	rows        []row
}

type row struct{ what, measured, target, verdict string }

func (r row) judged() bool { return r.verdict != "" }

// Section begins a section. Figures are added to the last one.
func (t *Table) Section(title, note string) {
	t.sections = append(t.sections, section{title: title, note: note})
}

// Figure adds a figure without a target.
func (t *Table) Figure(what, measured string) { t.add(row{what: what, measured: measured}) }

// AtLeast adds a figure that must not be below a limit.
func (t *Table) AtLeast(what string, value, limit float64, format Format) {
	t.Judge(what, format(value), "≥ "+format(limit), value >= limit)
}

// AtMost adds a figure that must not be above a limit.
func (t *Table) AtMost(what string, value, limit float64, format Format) {
	t.Judge(what, format(value), "≤ "+format(limit), value <= limit)
}

// Judge adds a figure with any target.
func (t *Table) Judge(what, measured, target string, met bool) {
	verdict := "met"
	if !met {
		verdict = "**missed**"
		t.Missed++
	}
	t.add(row{what, measured, target, verdict})
}

func (t *Table) add(line row) {
	last := &t.sections[len(t.sections)-1]
	last.rows = append(last.rows, line)
}

// Write writes the table as Markdown.
func (t *Table) Write(w io.Writer) error {
	var b strings.Builder
	for _, s := range t.sections {
		fmt.Fprintf(&b, "\n### %s\n\n%s\n", s.title, s.note)
		if slices.ContainsFunc(s.rows, row.judged) {
			b.WriteString("\n| | measured | target | |\n|---|---:|---:|---|\n")
		} else {
			b.WriteString("\n| | measured |\n|---|---:|\n")
		}
		for _, row := range s.rows {
			fmt.Fprintf(&b, "| %s | %s |", row.what, row.measured)
			if row.judged() {
				fmt.Fprintf(&b, " %s | %s |", row.target, row.verdict)
			}
			b.WriteString("\n")
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}
