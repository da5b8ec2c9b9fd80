package main

import (
	"cmp"
	"encoding/xml"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
)

// chart is a picture of lines over a linear x axis and a logarithmic y axis.
type chart struct {
	title, subtitle string
	x, y            string // what the axes show
	lines           []line
}

type line struct {
	label  string
	colour string
	dash   string // of stroke-dasharray; empty: solid
	points []point
}

type point struct{ x, y float64 } // y > 0

// The picture's measures, in pixels.
const (
	chartWidth, chartHeight = 920, 540
	plotLeft, plotTop       = 76, 72
	plotRight, plotBottom   = chartWidth - 150, chartHeight - 62
	labelHeight             = 15
)

// write writes the chart as SVG. It is readable on light and dark pages, because it brings its own ground.
func (c *chart) write(w io.Writer) error {
	top := 0.0
	low, high := math.Inf(1), math.Inf(-1)
	for _, l := range c.lines {
		for _, p := range l.points {
			top, low, high = max(top, p.x), min(low, p.y), max(high, p.y)
		}
	}
	if top == 0 || math.IsInf(low, 0) {
		return fmt.Errorf("chart %q: nothing to show", c.title)
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
		_ = xml.EscapeText(&b, []byte(s)) // a Builder takes everything
		b.WriteString("</text>\n")
	}
	rule := func(x1, y1, x2, y2 float64, colour string) {
		fmt.Fprintf(&b, `<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" stroke="%s"/>`+"\n", x1, y1, x2, y2, colour)
	}
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" height="%d" font-family="system-ui, sans-serif" font-size="12" fill="#333">`+"\n",
		chartWidth, chartHeight, chartWidth, chartHeight)
	fmt.Fprintf(&b, `<rect width="%d" height="%d" fill="#fff"/>`+"\n", chartWidth, chartHeight)
	text("", "start", plotLeft, 30, ` font-size="18" font-weight="600" fill="#111"`, c.title)
	text("", "start", plotLeft, 50, ` fill="#666"`, c.subtitle)

	for v := 0.0; v <= right; v += step {
		rule(x(v), plotTop, x(v), plotBottom, "#eee")
		text("", "middle", x(v), plotBottom+18, "", grouped(int(v+0.5)))
	}
	for decade := floor; decade <= ceiling; decade++ {
		v := math.Pow(10, decade)
		rule(plotLeft, y(v), plotRight, y(v), "#ccc")
		text("", "end", plotLeft-8, y(v)+4, "", fmt.Sprintf("%g", v))
		for minor := 2.0; minor < 10 && decade < ceiling; minor++ {
			rule(plotLeft, y(v*minor), plotRight, y(v*minor), "#f4f4f4")
		}
	}
	rule(plotLeft, plotBottom, plotRight, plotBottom, "#333")
	rule(plotLeft, plotTop, plotLeft, plotBottom, "#333")
	middle := float64(plotTop+plotBottom) / 2
	text("", "middle", float64(plotLeft+plotRight)/2, chartHeight-16, "", c.x)
	text(fmt.Sprintf(` transform="rotate(-90 22 %.1f)"`, middle), "middle", 22, middle, "", c.y)

	for _, l := range c.lines {
		var path []string
		for _, p := range l.points {
			path = append(path, fmt.Sprintf("%.1f,%.1f", x(p.x), y(p.y)))
		}
		fmt.Fprintf(&b, `<polyline points="%s" fill="none" stroke="%s" stroke-width="2" stroke-linejoin="round" stroke-dasharray="%s"/>`+"\n",
			strings.Join(path, " "), l.colour, cmp.Or(l.dash, "none"))
		for _, p := range l.points {
			fmt.Fprintf(&b, `<circle cx="%.1f" cy="%.1f" r="3" fill="%s"/>`+"\n", x(p.x), y(p.y), l.colour)
		}
	}
	for i, at := range spread(c.lines, y) {
		l := c.lines[i]
		text("", "start", plotRight+10, at+4, fmt.Sprintf(` fill="%s"`, l.colour), l.label)
	}
	b.WriteString("</svg>\n")
	_, err := io.WriteString(w, b.String())
	return err
}

// spread places each line's label beside its last point, moved down where it would cover another.
func spread(lines []line, y func(float64) float64) []float64 {
	places := make([]float64, len(lines))
	byPlace := make([]int, len(lines))
	for i, l := range lines {
		places[i] = y(l.points[len(l.points)-1].y)
		byPlace[i] = i
	}
	slices.SortStableFunc(byPlace, func(a, b int) int { return cmp.Compare(places[a], places[b]) })
	for i := 1; i < len(byPlace); i++ {
		places[byPlace[i]] = max(places[byPlace[i]], places[byPlace[i-1]]+labelHeight)
	}
	// What went below the plot pushes back up.
	limit := float64(plotBottom)
	for _, i := range slices.Backward(byPlace) {
		places[i] = min(places[i], limit)
		limit = places[i] - labelHeight
	}
	return places
}

// niceStep is the least of 1, 2 and 5 times a power of ten that is not below v.
func niceStep(v float64) float64 {
	power := math.Pow(10, math.Floor(math.Log10(v)))
	for _, factor := range []float64{1, 2, 5} {
		if v <= factor*power*(1+1e-9) {
			return factor * power
		}
	}
	return 10 * power
}
