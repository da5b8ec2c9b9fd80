package report

import (
	"fmt"

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
