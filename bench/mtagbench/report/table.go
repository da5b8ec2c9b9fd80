// Package report writes what a run measured: a table of figures and whether they meet their targets, and a line chart.
//
// Read in this order:
//
//	table.go   the table, as Markdown
//	chart.go   the chart, as SVG
//	format.go  numbers with their units
package report

import (
	"fmt"
	"io"
	"slices"
	"strings"
)

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
