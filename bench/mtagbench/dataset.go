package main

import (
	"encoding/json"
	"fmt"
	"os"
	"time"

	"mtagd/bench"
)

// dataset is one merchant's events for listing. Event i of Events occurred at Start + i × Step,
// belongs to tag i mod len(Tags), and its name follows from i as well: whatever a query selects,
// the exact total is known without asking anyone.
type dataset struct {
	Merchant string        `json:"merchantId"`
	Tags     []datasetTag  `json:"tags"`
	Events   int           `json:"events"`
	Start    time.Time     `json:"start"`
	Step     time.Duration `json:"step"`
}

type datasetTag struct {
	ID   string `json:"tagId"`
	Host string `json:"host"`
}

// manifest is what fill made, and what list asks about.
type manifest struct {
	Large  dataset `json:"large"`
	Small  dataset `json:"small"`
	Others int     `json:"otherMerchants"` // beside the large one; the small one is the first of them
}

// write writes the manifest to a file.
func (m *manifest) write(file string) error {
	text, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(file, append(text, '\n'), 0o666)
}

// readManifest reads what write has written.
func readManifest(file string) (*manifest, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	m := new(manifest)
	if err := json.Unmarshal(text, m); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return m, nil
}

// at is the time of event i.
func (d *dataset) at(i int) time.Time { return d.Start.Add(time.Duration(i) * d.Step) }

func (d *dataset) name(i int) string { return bench.Names[i/len(d.Tags)%len(bench.Names)] }

// count is the number of events from the lo-th to before the hi-th that have one of some names (nil: any)
// and a tag (-1: any).
func (d *dataset) count(lo, hi int, selected map[string]bool, tag int) (total int) {
	cycle := len(d.Tags) * len(bench.Names)
	for residue := range cycle {
		if (selected == nil || selected[d.name(residue)]) && (tag < 0 || residue%len(d.Tags) == tag) {
			total += congruent(hi, residue, cycle) - congruent(lo, residue, cycle)
		}
	}
	return total
}

// congruent counts the numbers below n that leave the residue when divided by cycle.
func congruent(n, residue, cycle int) int {
	if n <= residue {
		return 0
	}
	return (n - residue + cycle - 1) / cycle
}

// order is how a dataset's events arrive.
type order string

const (
	ordered  order = "ordered"
	shuffled order = "shuffled"
)

// filler makes the batches of a dataset.
type filler struct {
	*dataset
	targets []target // of each tag
	stride  int      // coprime to a tag's number of events; 1 keeps their order
	batch   int      // batches made
	body    []byte
}

const fillBatch = 1000

func newFiller(d *dataset, address target, o order) *filler {
	f := &filler{dataset: d, stride: 1}
	for _, tag := range d.Tags {
		t := address
		t.host, t.path = tag.Host, "/mark/"+tag.ID
		f.targets = append(f.targets, t)
	}
	if o == shuffled {
		// About the golden section of the whole: neighbours in arrival are far apart in time.
		perTag := d.Events / len(d.Tags)
		for f.stride = max(perTag*618/1000, 1); gcd(f.stride, perTag) != 1; f.stride++ {
		}
	}
	return f
}

func gcd(a, b int) int {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// next is the source of a phase. Each batch goes to one tag, the tags take turns.
func (f *filler) next(b []byte) (request []byte, events int) {
	tags := len(f.Tags)
	tag, perTag := f.batch%tags, f.Events/tags
	first := f.batch / tags * fillBatch
	if first >= perTag {
		return b, 0
	}
	f.batch++
	events = min(fillBatch, perTag-first)
	f.body = f.body[:0]
	for k := first; k < first+events; k++ {
		f.body = append(f.body, "[,"[min(k-first, 1)])
		i := k*f.stride%perTag*tags + tag
		f.body = bench.AppendEvent(f.body, uint64(i), f.name(i), f.at(i), false)
	}
	f.body = append(f.body, ']')
	b = fmt.Appendf(b, "POST %s HTTP/1.1\r\nHost: %s\r\nContent-Length: %d\r\n\r\n", f.targets[tag].path, f.targets[tag].host, len(f.body))
	return append(b, f.body...), events
}
