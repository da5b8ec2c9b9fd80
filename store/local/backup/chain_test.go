package backup

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

var start = time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)

// history makes points of one data directory, each "name parent [small] age bytes".
func history(t *testing.T, lines ...string) (points []*Manifest) {
	t.Helper()
	byName := map[string]*Manifest{}
	for i, line := range lines {
		var name, parent, age string
		var bytes int
		kind := "large"
		words := strings.Fields(line)
		if len(words) == 5 {
			kind = words[2]
			words = slices.Delete(words, 2, 3)
		}
		if _, err := fmt.Sscan(strings.Join(words, " "), &name, &parent, &age, &bytes); err != nil {
			t.Fatal(err)
		}
		ago, err := time.ParseDuration(age)
		if err != nil {
			t.Fatal(err)
		}
		m := &Manifest{Data: "d", Point: name, Small: kind == "small", Time: start.Add(-ago), Version: uint64(i + 1),
			Events: []Piece{{Name: objectsPrefix("d", newPoint(start.Add(-ago))) + "000001", Size: bytes}}}
		if p := byName[parent]; p != nil {
			m.Parent, m.Since = p.Point, p.Version
		}
		byName[name] = m
		points = append(points, m)
	}
	return points
}

func TestParent(t *testing.T) {
	const mb = "000000"
	for _, c := range []struct {
		name   string
		points []string
		opt    Options
		want   string // empty: a base
	}{
		{"nothing is there", nil, Options{}, ""},
		{"an increment builds on the newest point", []string{"a - 3h 100", "b a 2h 1"}, Options{}, "b"},
		{"a base is asked for", []string{"a - 3h 100"}, Options{Full: true}, ""},
		{"other recipients", []string{"a - 3h 100"}, Options{Recipients: []string{"age1x"}}, ""},
		{"the chain is broken", []string{"b - 2h 1", "c b 1h 1"}, Options{}, "c"},
		{"increments larger than the base", []string{"a - 3h 100" + mb, "b a 2h 60" + mb, "c b 1h 60" + mb}, Options{}, ""},
		{"increments larger than a small base", []string{"a - 3h 1", "b a 2h 1" + mb}, Options{}, "b"},
		{"a base older than points are kept", []string{"a - 30h 1", "b a 2h 1"}, Options{Keep: 24 * time.Hour}, ""},
		{"small points build on each other", []string{"a - 3m 1", "b a small 2m 1", "c b small 1m 1"}, Options{Small: true}, "c"},
		{"small points are folded when they are many bytes", []string{"a - 3m 100" + mb, "b a small 2m 10" + mb, "c b small 1m 10" + mb}, Options{Small: true}, "a"},
		{"and after an hour", []string{"a - 61m 1", "b a small 2m 1"}, Options{Small: true}, "a"},
		{"and by the first one of a process", []string{"a - 3m 1", "b a small 2m 1"}, Options{Small: true, Fold: true}, "a"},
		{"a larger point folds them too", []string{"a - 3m 1", "b a small 2m 1"}, Options{}, "a"},
	} {
		parent, why := parentFor(history(t, c.points...), c.opt, start)
		got := ""
		if parent != nil {
			got = parent.Point
		}
		if got != c.want || (parent == nil) != (why != "") {
			t.Errorf("%s: it builds on %q, because %q; want %q", c.name, got, why, c.want)
		}
	}
	points := history(t, "a - 3h 1", "b a 2h 1")
	if parent, why := parentFor(points[1:], Options{}, start); parent != nil {
		t.Errorf("a chain without its base goes on from %s, %s", parent.Point, why)
	}
}

func TestObsolete(t *testing.T) {
	for _, c := range []struct {
		name   string
		points []string
		keep   time.Duration
		want   string
	}{
		{"all are young", []string{"a - 3h 1", "b a 2h 1"}, 4 * time.Hour, ""},
		{"a chain stays whole while one of it is kept", []string{"a - 9h 1", "b a 8h 1", "c b 1h 1"}, 4 * time.Hour, ""},
		{"a chain without a young point goes", []string{"a - 9h 1", "b a 8h 1", "c - 1h 1"}, 4 * time.Hour, "a b"},
		{"the newest stays, however old", []string{"a - 90h 1", "b a 80h 1"}, 4 * time.Hour, ""},
		{"a branch goes", []string{"a - 9h 1", "b a 8h 1", "c a 1h 1"}, 4 * time.Hour, "b"},
		{"all are kept for ever", []string{"a - 9000h 1", "b - 1h 1"}, 0, ""},
		{"folded small points go after an hour", []string{"a - 3h 1", "b a small 2h 1", "c b small 1m 1", "d a 1m 1"}, 0, ""},
		{"when no young one needs them", []string{"a - 3h 1", "b a small 2h 1", "c b small 90m 1", "d a 80m 1"}, 0, "b c"},
	} {
		var got []string
		for _, m := range obsolete(history(t, c.points...), c.keep, start) {
			got = append(got, m.Point)
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("%s: %v goes, want %q", c.name, got, c.want)
		}
	}
}

// Objects without a point are garbage. Young ones may belong to a backup that runs, or to a point that is missing for a
// moment, unless their point was just removed.
func TestGarbage(t *testing.T) {
	points := history(t, "a - 1h 1")
	old := Stored{Name: objectsPrefix("d", newPoint(start.Add(-25*time.Hour))) + "000001"}
	young := Stored{Name: objectsPrefix("d", newPoint(start.Add(-time.Minute))) + "000001.tmp"}
	stored := []Stored{{Name: points[0].Events[0].Name}, old, young, {Name: "d/objects/notes.txt"}}
	if got, want := garbage(stored, points, nil, start), []string{old.Name}; !slices.Equal(got, want) {
		t.Errorf("%v is removed, want %v", got, want)
	}
	if got, want := garbage(stored, points, []*Manifest{{Events: []Piece{{Name: young.Name}}}}, start), []string{old.Name, young.Name}; !slices.Equal(got, want) {
		t.Errorf("with the objects of a removed point, %v is removed, want %v", got, want)
	}
}
