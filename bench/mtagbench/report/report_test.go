package report

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"mtagd/store/testenv"
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

// A chart has its texts, and a line for each one.
func TestChart(t *testing.T) {
	testenv.Program(t, "gnuplot")
	c := Chart{Title: "a < b & c_d", Subtitle: `a "quoted" word`, X: "x", Y: "y", Lines: []Line{
		{Label: "one", Colour: "#111111", Points: []Point{{0, 1}, {1000, 31.6227766}, {2000, 1000}}},
		{Label: "two", Colour: "#222222", Dash: "2", Points: []Point{{0, 0.5}, {2000, 990}}},
	}}
	file := filepath.Join(t.TempDir(), "chart.svg")
	if err := c.Draw(t.Context(), file); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{"a &lt; b &amp; c_d", "quoted", ">one<", ">two<", "rgb( 17,  17,  17)", "rgb( 34,  34,  34)"} {
		if !strings.Contains(string(text), part) {
			t.Errorf("the chart has no %s:\n%s", part, text)
		}
	}
	if err := (&Chart{}).Draw(t.Context(), file); err == nil {
		t.Error("an empty chart is no error")
	}
}
