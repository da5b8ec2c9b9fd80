package main

import "testing"

func TestMedian(t *testing.T) {
	r := rounds{"three": {9, 1, 5}, "four": {8, 2, 4, 6}}
	if r.median("three") != 5 || r.median("four") != 5 {
		t.Errorf("%v, %v", r.median("three"), r.median("four"))
	}
}
