package report

import (
	"encoding/xml"
	"errors"
	"io"
	"strconv"
	"strings"
	"testing"
)

// A figure on its target meets it, and the table says what was missed.
func TestVerdicts(t *testing.T) {
	var r Table
	r.Section("Part", "A note.")
	r.Figure("a figure", PerSecond(1234567))
	r.AtLeast("fast enough", 0.70, 0.70, Ratio)
	r.AtLeast("too slow", 0.69, 0.70, Ratio)
	r.AtMost("quick enough", 0.005, 0.005, Milliseconds)
	r.AtMost("too late", 0.1004, 0.100, Milliseconds)
	r.Section("Another", "Without targets.")
	r.Figure("a figure", "1")
	want := `
### Part

A note.

| | measured | target | |
|---|---:|---:|---|
| a figure | 1,234,567/s |
| fast enough | 0.70 | ≥ 0.70 | met |
| too slow | 0.69 | ≥ 0.70 | **missed** |
| quick enough | 5.00 ms | ≤ 5.00 ms | met |
| too late | 100 ms | ≤ 100 ms | **missed** |

### Another

Without targets.

| | measured | target | |
|---|---:|---:|---|
| a figure | 1 |
`
	if r.String() != want || r.Missed != 2 {
		t.Errorf("%d missed:%s", r.Missed, r.String())
	}
}

func TestForms(t *testing.T) {
	for got, want := range map[string]string{
		Grouped(0): "0", Grouped(999): "999", Grouped(1000): "1,000", Grouped(-1000): "-1,000", Grouped(-100): "-100", Grouped(12345678): "12,345,678",
		Milliseconds(0.0000123): "0.01 ms", Milliseconds(1.5): "1,500 ms", Percent(0.123): "12.3 %", Mebibytes(512 << 20): "512 MiB", Microseconds(2.5e-6): "2.5 µs",
	} {
		if got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}

// A chart is well-formed, its lines lie within the axes, higher values are higher up, and no label covers another.
func TestChart(t *testing.T) {
	c := Chart{Title: "a < b & c", X: "x", Y: "y", Lines: []Line{
		{Label: "one", Colour: "#111", Points: []Point{{0, 1}, {1000, 31.6227766}, {2000, 1000}}},
		{Label: "two", Colour: "#222", Dash: "2 4", Points: []Point{{0, 0.5}, {2000, 990}}},
		{Label: "three", Colour: "#333", Points: []Point{{2000, 0.011}}},
		{Label: "four", Colour: "#444", Points: []Point{{2000, 0.01}}},
	}}
	text, err := c.SVG()
	if err != nil {
		t.Fatal(err)
	}
	var lines [][]Point
	labels := map[string]float64{}
	for decoder := xml.NewDecoder(strings.NewReader(text)); ; {
		token, err := decoder.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		element, ok := token.(xml.StartElement)
		if !ok {
			continue
		}
		attributes := map[string]string{}
		for _, a := range element.Attr {
			attributes[a.Name.Local] = a.Value
		}
		switch element.Name.Local {
		case "polyline":
			var points []Point
			for pair := range strings.FieldsSeq(attributes["points"]) {
				x, y, _ := strings.Cut(pair, ",")
				points = append(points, Point{number(t, x), number(t, y)})
			}
			lines = append(lines, points)
		case "text":
			if strings.HasPrefix(attributes["fill"], "#") && attributes["font-size"] == "" && attributes["fill"] != "#666" {
				labels[attributes["fill"]] = number(t, attributes["y"])
			}
		}
	}
	if len(lines) != 4 || len(labels) != 4 {
		t.Fatalf("%d lines, %d labels", len(lines), len(labels))
	}
	for _, points := range lines {
		for i, p := range points {
			if p.X < plotLeft || p.X > plotRight || p.Y < plotTop || p.Y > plotBottom {
				t.Errorf("point %v is outside the axes", p)
			}
			if i > 0 && (p.Y >= points[i-1].Y || p.X <= points[i-1].X) {
				t.Errorf("point %v is not above and right of %v", p, points[i-1])
			}
		}
	}
	// Each step of a decade is as high as the next.
	if one := lines[0]; abs((one[0].Y-one[1].Y)-(one[1].Y-one[2].Y)) > 0.2 {
		t.Errorf("decades differ in height: %v", one)
	}
	for a, at := range labels {
		if at < plotTop || at > plotBottom+labelHeight/2 {
			t.Errorf("label %s is above or below the plot", a)
		}
		for b, other := range labels {
			if a != b && abs(at-other) < labelHeight-0.2 {
				t.Errorf("labels %s and %s overlap", a, b)
			}
		}
	}
	if _, err := (&Chart{}).SVG(); err == nil {
		t.Error("an empty chart is no error")
	}
}

func abs(v float64) float64 { return max(v, -v) }

func number(t *testing.T, s string) float64 {
	t.Helper()
	v, err := strconv.ParseFloat(s, 64)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func TestNiceStep(t *testing.T) {
	for v, want := range map[float64]float64{1: 1, 1.2: 2, 3: 5, 7: 10, 6873: 10000, 0.03: 0.05, 200: 200} {
		if got := niceStep(v); abs(got-want) > want/1e6 {
			t.Errorf("%v: %v, want %v", v, got, want)
		}
	}
}
