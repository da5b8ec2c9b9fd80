// Package report writes what a run measured: a table of figures and whether they meet their targets, and a line chart.
//
// Read in this order:
//
//	table.go  the table, as Markdown, and numbers with their units
//	chart.go  the chart, by gnuplot
package report

import (
	"fmt"
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

// Table is Markdown: sections of figures, some of which have a target that is met or missed.
type Table struct {
	strings.Builder
	Missed int // figures that missed their targets
}

// Section begins a section, to which the next figures belong.
func (t *Table) Section(title, note string) {
	fmt.Fprintf(t, "\n### %s\n\n%s\n\n| | measured | target | |\n|---|---:|---:|---|\n", title, note)
}

// Figure adds a figure without a target.
func (t *Table) Figure(what, measured string) { fmt.Fprintf(t, "| %s | %s |\n", what, measured) }

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
	fmt.Fprintf(t, "| %s | %s | %s | %s |\n", what, measured, target, verdict)
}
