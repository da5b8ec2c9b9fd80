package main

import "testing"

func TestMedian(t *testing.T) {
	if got := median([]float64{9, 1, 5}); got != 5 {
		t.Errorf("of three: %v", got)
	}
	if got := median([]float64{8, 2, 4, 6}); got != 5 {
		t.Errorf("of four: %v", got)
	}
}
