package report

import (
	"cmp"
	"encoding/xml"
	"fmt"
	"math"
	"strings"
)

// Chart is a picture of lines over a linear x axis and a logarithmic y axis.
type Chart struct {
	Title, Subtitle string
	X, Y            string // labels of the axes
	Lines           []Line
}

// Line joins points, in the order of their x.
type Line struct {
	Label  string
	Colour string
	Dash   string // SVG's stroke-dasharray; empty: solid
	Points []Point
}

// Point is one measurement. Y is above 0.
type Point struct{ X, Y float64 }

// The picture's measures, in pixels.
const (
	chartWidth, chartHeight = 920, 540
	plotLeft, plotTop       = 76, 72
	plotRight, plotBottom   = chartWidth - 190, chartHeight - 62
	labelHeight             = 18
)

// SVG draws the chart. Its background is white, so that it can be read on light and dark pages.
func (c *Chart) SVG() (string, error) {
	d, err := newDrawing(c)
	if err != nil {
		return "", err
	}
	fmt.Fprintf(d, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" height="%d" font-family="system-ui, sans-serif" font-size="12" fill="#333">`+"\n",
		chartWidth, chartHeight, chartWidth, chartHeight)
	fmt.Fprintf(d, `<rect width="%d" height="%d" fill="#fff"/>`+"\n", chartWidth, chartHeight)
	d.text("start", plotLeft, 30, ` font-size="18" font-weight="600" fill="#111"`, c.Title)
	d.text("start", plotLeft, 50, ` fill="#666"`, c.Subtitle)
	d.axes(c)
	d.lines(c.Lines)
	d.labels(c.Lines)
	d.WriteString("</svg>\n")
	return d.String(), nil
}

// drawing is the SVG of a chart while it is written, and the scales of its axes.
type drawing struct {
	strings.Builder
	step, right    float64 // of the x axis: between two marks, and its end
	floor, ceiling float64 // of the y axis: its ends, as powers of ten
}

// newDrawing chooses scales that all points fit into.
func newDrawing(c *Chart) (*drawing, error) {
	top := 0.0
	low, high := math.Inf(1), math.Inf(-1)
	for _, l := range c.Lines {
		for _, p := range l.Points {
			top, low, high = max(top, p.X), min(low, p.Y), max(high, p.Y)
		}
	}
	if top == 0 || math.IsInf(low, 0) {
		return nil, fmt.Errorf("chart %q: nothing to show", c.Title)
	}
	d := &drawing{step: niceStep(top / 6), right: top * 1.02, floor: math.Floor(math.Log10(low))}
	d.ceiling = max(math.Ceil(math.Log10(high)), d.floor+1)
	return d, nil
}

// x and y convert values to pixels.
func (d *drawing) x(v float64) float64 { return plotLeft + v/d.right*(plotRight-plotLeft) }

func (d *drawing) y(v float64) float64 {
	return plotBottom - (math.Log10(v)-d.floor)/(d.ceiling-d.floor)*(plotBottom-plotTop)
}

// axes draws both axes with their marks and labels.
func (d *drawing) axes(c *Chart) {
	for v := 0.0; v <= d.right; v += d.step {
		d.rule(d.x(v), plotTop, d.x(v), plotBottom, "#eee")
		d.text("middle", d.x(v), plotBottom+18, "", Grouped(int(v+0.5)))
	}
	for decade := d.floor; decade <= d.ceiling; decade++ {
		v := math.Pow(10, decade)
		d.rule(plotLeft, d.y(v), plotRight, d.y(v), "#ccc")
		d.text("end", plotLeft-8, d.y(v)+4, "", tick(v))
		for minor := 2.0; minor < 10 && decade < d.ceiling; minor++ {
			d.rule(plotLeft, d.y(v*minor), plotRight, d.y(v*minor), "#f4f4f4")
		}
	}
	d.rule(plotLeft, plotBottom, plotRight, plotBottom, "#333")
	d.rule(plotLeft, plotTop, plotLeft, plotBottom, "#333")
	middle := float64(plotTop+plotBottom) / 2
	d.text("middle", float64(plotLeft+plotRight)/2, chartHeight-16, "", c.X)
	d.text("middle", 22, middle, fmt.Sprintf(` transform="rotate(-90 22 %.1f)"`, middle), c.Y)
}

func (d *drawing) lines(lines []Line) {
	for _, l := range lines {
		var path []string
		for _, p := range l.Points {
			path = append(path, fmt.Sprintf("%.1f,%.1f", d.x(p.X), d.y(p.Y)))
		}
		fmt.Fprintf(d, `<polyline points="%s" fill="none" stroke="%s" stroke-width="2" stroke-linejoin="round" stroke-dasharray="%s"/>`+"\n",
			strings.Join(path, " "), l.Colour, cmp.Or(l.Dash, "none"))
		for _, p := range l.Points {
			fmt.Fprintf(d, `<circle cx="%.1f" cy="%.1f" r="3" fill="%s"/>`+"\n", d.x(p.X), d.y(p.Y), l.Colour)
		}
	}
}

// labels writes a legend to the right of the plot.
func (d *drawing) labels(lines []Line) {
	for i, l := range lines {
		y := float64(plotTop + (i+1)*labelHeight)
		fmt.Fprintf(d, `<path d="M%d %.1fh26" stroke="%s" stroke-width="2" stroke-dasharray="%s"/>`+"\n", plotRight+8, y-4, l.Colour, cmp.Or(l.Dash, "none"))
		d.text("start", plotRight+40, y, fmt.Sprintf(` fill="%s"`, l.Colour), l.Label)
	}
}

// text writes s at x, y. attributes are added to the SVG element.
func (d *drawing) text(anchor string, x, y float64, attributes, s string) {
	fmt.Fprintf(d, `<text x="%.1f" y="%.1f" text-anchor="%s"%s>`, x, y, anchor, attributes)
	_ = xml.EscapeText(d, []byte(s)) // a Builder returns no errors
	d.WriteString("</text>\n")
}

// rule draws a thin straight line.
func (d *drawing) rule(x1, y1, x2, y2 float64, colour string) {
	fmt.Fprintf(d, `<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" stroke="%s"/>`+"\n", x1, y1, x2, y2, colour)
}

// tick writes the value of a decade.
func tick(v float64) string {
	if v < 1 {
		return fmt.Sprintf("%g", v)
	}
	return Grouped(int(v + 0.5))
}

// niceStep rounds up to 1, 2 or 5 times a power of ten.
func niceStep(v float64) float64 {
	power := math.Pow(10, math.Floor(math.Log10(v)))
	for _, factor := range []float64{1, 2, 5} {
		if v <= factor*power*(1+1e-9) {
			return factor * power
		}
	}
	return 10 * power
}
