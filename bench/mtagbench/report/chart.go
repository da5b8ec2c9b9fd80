package report

import (
	"cmp"
	"encoding/xml"
	"fmt"
	"io"
	"math"
	"slices"
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
	plotRight, plotBottom   = chartWidth - 150, chartHeight - 62
	labelHeight             = 15
)

// Write writes the chart as SVG. Its background is white, so that it can be read on light and dark pages.
func (c *Chart) Write(w io.Writer) error {
	top := 0.0
	low, high := math.Inf(1), math.Inf(-1)
	for _, l := range c.Lines {
		for _, p := range l.Points {
			top, low, high = max(top, p.X), min(low, p.Y), max(high, p.Y)
		}
	}
	if top == 0 || math.IsInf(low, 0) {
		return fmt.Errorf("chart %q: nothing to show", c.Title)
	}
	step := niceStep(top / 6)
	right := top * 1.02
	floor, ceiling := math.Floor(math.Log10(low)), math.Ceil(math.Log10(high))
	ceiling = max(ceiling, floor+1)
	x := func(v float64) float64 { return plotLeft + v/right*(plotRight-plotLeft) }
	y := func(v float64) float64 {
		return plotBottom - (math.Log10(v)-floor)/(ceiling-floor)*(plotBottom-plotTop)
	}

	var b strings.Builder
	text := func(at, anchor string, px, py float64, style, s string) {
		fmt.Fprintf(&b, `<text x="%.1f" y="%.1f" text-anchor="%s"%s%s>`, px, py, anchor, at, style)
		_ = xml.EscapeText(&b, []byte(s)) // a Builder returns no errors
		b.WriteString("</text>\n")
	}
	rule := func(x1, y1, x2, y2 float64, colour string) {
		fmt.Fprintf(&b, `<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" stroke="%s"/>`+"\n", x1, y1, x2, y2, colour)
	}
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" height="%d" font-family="system-ui, sans-serif" font-size="12" fill="#333">`+"\n",
		chartWidth, chartHeight, chartWidth, chartHeight)
	fmt.Fprintf(&b, `<rect width="%d" height="%d" fill="#fff"/>`+"\n", chartWidth, chartHeight)
	text("", "start", plotLeft, 30, ` font-size="18" font-weight="600" fill="#111"`, c.Title)
	text("", "start", plotLeft, 50, ` fill="#666"`, c.Subtitle)

	for v := 0.0; v <= right; v += step {
		rule(x(v), plotTop, x(v), plotBottom, "#eee")
		text("", "middle", x(v), plotBottom+18, "", Grouped(int(v+0.5)))
	}
	for decade := floor; decade <= ceiling; decade++ {
		v := math.Pow(10, decade)
		rule(plotLeft, y(v), plotRight, y(v), "#ccc")
		text("", "end", plotLeft-8, y(v)+4, "", tick(v))
		for minor := 2.0; minor < 10 && decade < ceiling; minor++ {
			rule(plotLeft, y(v*minor), plotRight, y(v*minor), "#f4f4f4")
		}
	}
	rule(plotLeft, plotBottom, plotRight, plotBottom, "#333")
	rule(plotLeft, plotTop, plotLeft, plotBottom, "#333")
	middle := float64(plotTop+plotBottom) / 2
	text("", "middle", float64(plotLeft+plotRight)/2, chartHeight-16, "", c.X)
	text(fmt.Sprintf(` transform="rotate(-90 22 %.1f)"`, middle), "middle", 22, middle, "", c.Y)

	for _, l := range c.Lines {
		var path []string
		for _, p := range l.Points {
			path = append(path, fmt.Sprintf("%.1f,%.1f", x(p.X), y(p.Y)))
		}
		fmt.Fprintf(&b, `<polyline points="%s" fill="none" stroke="%s" stroke-width="2" stroke-linejoin="round" stroke-dasharray="%s"/>`+"\n",
			strings.Join(path, " "), l.Colour, cmp.Or(l.Dash, "none"))
		for _, p := range l.Points {
			fmt.Fprintf(&b, `<circle cx="%.1f" cy="%.1f" r="3" fill="%s"/>`+"\n", x(p.X), y(p.Y), l.Colour)
		}
	}
	for i, at := range placeLabels(c.Lines, y) {
		l := c.Lines[i]
		text("", "start", plotRight+10, at+4, fmt.Sprintf(` fill="%s"`, l.Colour), l.Label)
	}
	b.WriteString("</svg>\n")
	_, err := io.WriteString(w, b.String())
	return err
}

// placeLabels returns the height of each line's label: beside the line's last point, or below another label that it
// would cover.
func placeLabels(lines []Line, y func(float64) float64) []float64 {
	places := make([]float64, len(lines))
	byPlace := make([]int, len(lines))
	for i, l := range lines {
		places[i] = y(l.Points[len(l.Points)-1].Y)
		byPlace[i] = i
	}
	slices.SortStableFunc(byPlace, func(a, b int) int { return cmp.Compare(places[a], places[b]) })
	for i := 1; i < len(byPlace); i++ {
		places[byPlace[i]] = max(places[byPlace[i]], places[byPlace[i-1]]+labelHeight)
	}
	// Labels that ended up below the plot move up, and push others up.
	limit := float64(plotBottom)
	for _, i := range slices.Backward(byPlace) {
		places[i] = min(places[i], limit)
		limit = places[i] - labelHeight
	}
	return places
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
