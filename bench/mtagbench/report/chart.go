package report

import (
	"cmp"
	"context"
	"fmt"
	"os/exec"
	"strings"
)

// Chart is a picture of lines over a linear x axis and a logarithmic y axis. gnuplot draws it.
type Chart struct {
	Title, Subtitle string
	X, Y            string // labels of the axes
	Lines           []Line
}

// Line joins points, in the order of their x.
type Line struct {
	Label  string
	Colour string
	Dash   string // gnuplot's dashtype; empty: solid
	Points []Point
}

// Point is one measurement. Y is above 0.
type Point struct{ X, Y float64 }

// Draw writes the chart to a file, as SVG. Its background is white, so that it can be read on light and dark pages.
func (c *Chart) Draw(ctx context.Context, file string) error {
	var script strings.Builder
	fmt.Fprintf(&script, `
set terminal svg size 920,540 font "sans-serif,12" background "white"
set output %q
set title %q noenhanced
set xlabel %q
set ylabel %q
set logscale y
set format "%%.10g"
set grid xtics ytics mytics
set xrange [0:*]
set key outside
plot`, file, c.Title+"\n"+c.Subtitle, c.X, c.Y)
	for _, l := range c.Lines {
		fmt.Fprintf(&script, ` "-" title %q with linespoints linecolor rgb %q linewidth 2 pointtype 7 pointsize 0.3 dashtype %s,`,
			l.Label, l.Colour, cmp.Or(l.Dash, "solid"))
	}
	for _, l := range c.Lines {
		script.WriteString("\n")
		for _, p := range l.Points {
			fmt.Fprintln(&script, p.X, p.Y)
		}
		script.WriteString("e")
	}
	gnuplot := exec.CommandContext(ctx, "gnuplot")
	gnuplot.Stdin = strings.NewReader(script.String())
	if out, err := gnuplot.CombinedOutput(); err != nil {
		return fmt.Errorf("gnuplot: %w: %s", err, out)
	}
	return nil
}
