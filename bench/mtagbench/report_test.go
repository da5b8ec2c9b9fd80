package main

import (
	"context"
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// A figure on its target meets it, and the table says what was missed.
func TestVerdicts(t *testing.T) {
	var r report
	r.section("Part", "A note.")
	r.tell("a figure", perSecond(1234567))
	r.atLeast("fast enough", 0.70, 0.70, ratio)
	r.atLeast("too slow", 0.69, 0.70, ratio)
	r.atMost("quick enough", 0.005, 0.005, milliseconds)
	r.atMost("too late", 0.1004, 0.100, milliseconds)
	var b strings.Builder
	if err := r.write(&b); err != nil {
		t.Fatal(err)
	}
	want := `
### Part

A note.

| | measured | target | |
|---|---:|---:|---|
| a figure | 1,234,567/s |  |  |
| fast enough | 0.70 | ≥ 0.70 | met |
| too slow | 0.69 | ≥ 0.70 | **missed** |
| quick enough | 5.00 ms | ≤ 5.00 ms | met |
| too late | 100 ms | ≤ 100 ms | **missed** |
`
	if b.String() != want || r.missed != 2 {
		t.Errorf("%d missed:%s", r.missed, b.String())
	}
}

func TestForms(t *testing.T) {
	for got, want := range map[string]string{
		grouped(0): "0", grouped(999): "999", grouped(1000): "1,000", grouped(-1000): "-1,000", grouped(-100): "-100", grouped(12345678): "12,345,678",
		milliseconds(0.0000123): "0.01 ms", milliseconds(1.5): "1,500 ms", percent(0.123): "12.3 %", mebibytes(512 << 20): "512 MiB", microseconds(2.5e-6): "2.5 µs",
	} {
		if got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}

func TestMedian(t *testing.T) {
	if got := median([]float64{9, 1, 5}); got != 5 {
		t.Errorf("of three: %v", got)
	}
	if got := median([]float64{8, 2, 4, 6}); got != 5 {
		t.Errorf("of four: %v", got)
	}
}

// A chart is well-formed, its lines lie within the axes, higher values are higher up, and no label covers another.
func TestChart(t *testing.T) {
	c := chart{title: "a < b & c", x: "x", y: "y", lines: []line{
		{label: "one", colour: "#111", points: []point{{0, 1}, {1000, 31.6227766}, {2000, 1000}}},
		{label: "two", colour: "#222", dash: "2 4", points: []point{{0, 0.5}, {2000, 990}}},
		{label: "three", colour: "#333", points: []point{{2000, 0.011}}},
		{label: "four", colour: "#444", points: []point{{2000, 0.01}}},
	}}
	var b strings.Builder
	if err := c.write(&b); err != nil {
		t.Fatal(err)
	}
	var lines [][]point
	labels := map[string]float64{}
	for decoder := xml.NewDecoder(strings.NewReader(b.String())); ; {
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
			var points []point
			for pair := range strings.FieldsSeq(attributes["points"]) {
				x, y, _ := strings.Cut(pair, ",")
				points = append(points, point{number(t, x), number(t, y)})
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
			if p.x < plotLeft || p.x > plotRight || p.y < plotTop || p.y > plotBottom {
				t.Errorf("point %v is outside the axes", p)
			}
			if i > 0 && (p.y >= points[i-1].y || p.x <= points[i-1].x) {
				t.Errorf("point %v is not above and right of %v", p, points[i-1])
			}
		}
	}
	// Each step of a decade is as high as the next.
	if one := lines[0]; abs((one[0].y-one[1].y)-(one[1].y-one[2].y)) > 0.2 {
		t.Errorf("decades differ in height: %v", one)
	}
	for a, at := range labels {
		if at < plotTop || at > plotBottom+labelHeight/2 {
			t.Errorf("label %s is beside no part of the plot", a)
		}
		for b, other := range labels {
			if a != b && abs(at-other) < labelHeight-0.2 {
				t.Errorf("labels %s and %s overlap", a, b)
			}
		}
	}
	if err := (&chart{}).write(io.Discard); err == nil {
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

// A program's name may have spaces and brackets of its own.
func TestParseCPU(t *testing.T) {
	got, err := parseCPU("42 (a b) c) S 1 2 3 4 5 6 7 8 9 10 250 50 0 0")
	if err != nil || got != 3*time.Second {
		t.Errorf("got %v, %v", got, err)
	}
	if _, err := parseCPU("42 (x) S 1"); err == nil {
		t.Error("too few fields are no error")
	}
}

// A server that ends before it is ready is told with its last words; one that is ready can be measured and stopped.
func TestProcess(t *testing.T) {
	p, err := start(t.Context(), "sh", "-c", "echo no disk; exit 3")
	if err != nil {
		t.Fatal(err)
	}
	_, err = p.await(t.Context(), func(string) string { return "" })
	if err == nil || !strings.Contains(err.Error(), "no disk") {
		t.Errorf("got %v", err)
	}

	ctx, cancel := context.WithCancel(t.Context())
	p, err = start(ctx, "sh", "-c", "echo ready >&2; exec sleep 60")
	if err != nil {
		t.Fatal(err)
	}
	if line, err := p.await(ctx, func(line string) string { return line }); err != nil || line != "ready" {
		t.Fatalf("got %q, %v", line, err)
	}
	if memory, err := p.anonymous(); err != nil || memory == 0 {
		t.Errorf("%d bytes, %v", memory, err)
	}
	if _, err := p.cpu(); err != nil {
		t.Error(err)
	}
	cancel()
	<-p.exited
}

// Disk usage is that of the blocks: a hole in a file takes none.
func TestDiskUsage(t *testing.T) {
	dir := t.TempDir()
	before, err := diskUsage(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "full"), make([]byte, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "hole"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(filepath.Join(dir, "hole"), 100<<20); err != nil {
		t.Fatal(err)
	}
	after, err := diskUsage(dir)
	if err != nil || after-before < 1<<20 || after-before > 2<<20 {
		t.Errorf("%d bytes, %v", after-before, err)
	}
}
