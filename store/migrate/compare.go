package migrate

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/cespare/xxhash/v2"
	"golang.org/x/sync/errgroup"

	"mtagd/store"
	"mtagd/store/rules"
)

// Digest is how many things there are, and a checksum of 128 bits: the sum of two hashes of each. It does not depend on
// their order.
type Digest struct{ N, a, b uint64 }

func (d *Digest) add(thing []byte) {
	var second xxhash.Digest
	second.ResetWithSeed(0x6d74616764)
	_, _ = second.Write(thing) // never fails
	d.N, d.a, d.b = d.N+1, d.a+xxhash.Sum64(thing), d.b+second.Sum64()
}

// digests are those of each merchant.
type digests map[store.MerchantKey]Digest

func (d digests) add(m store.MerchantKey, thing []byte) {
	of := d[m]
	of.add(thing)
	d[m] = of
}

// n returns how many things there are.
func (d digests) n() (n uint64) {
	for _, of := range d {
		n += of.N
	}
	return n
}

// errDiffers is wrapped by the errors of a comparison that finds a difference.
var errDiffers = errors.New("source and target differ")

// compare compares what merchants have, and returns how many things that are. Merchants that were deleted do not count: the
// source may have removed what they had; the target will.
func (d digests) compare(what string, target digests, merchants []store.MerchantKey) (n uint64, err error) {
	for _, m := range merchants {
		source, copied := d[m], target[m]
		switch {
		case source.N != copied.N:
			return 0, fmt.Errorf("%w: merchant %s has %d %s in the source, but %d in the target", errDiffers, m.ID(), source.N, what, copied.N)
		case source != copied:
			return 0, fmt.Errorf("%w: the checksums of the %d %s of merchant %s", errDiffers, source.N, what, m.ID())
		}
		n += source.N
	}
	return n, nil
}

func (e *Event) append(b []byte) []byte {
	b = binary.BigEndian.AppendUint64(append(b, e.Merchant[:]...), e.At.Seq)
	b = binary.BigEndian.AppendUint16(b, e.At.Index)
	b = binary.BigEndian.AppendUint64(b, uint64(e.Time))
	bot := byte(0)
	if e.Bot {
		bot = 1
	}
	b = e.Append(append(b, bot))
	for _, length := range []int{len(e.Tag), len(e.Name), len(e.MUID)} {
		b = binary.AppendUvarint(b, uint64(length))
	}
	return append(append(append(append(b, e.Tag...), e.Name...), e.MUID...), e.Raw...)
}

// readAgain reads the events in the target that were not read again yet.
func (c *copier) readAgain(ctx context.Context) error {
	if c.at == c.readUpTo {
		return nil
	}
	var text []byte
	n := c.read.n()
	if err := c.dst.Events(ctx, c.readUpTo, c.at, func(e *Event) error {
		text = e.append(text[:0])
		c.read.add(e.Merchant, text)
		if n++; n%1000 == 0 {
			c.opt.Progress(Comparing, n)
		}
		return nil
	}); err != nil {
		return fmt.Errorf("read the copied events: %w", err)
	}
	c.readUpTo = c.at
	return nil
}

// compare compares everything, and counts it.
func (c *copier) compare(ctx context.Context, control *Control) (err error) {
	var merchants []store.MerchantKey
	var ids []store.MerchantID
	for _, r := range control.Records {
		if r.Kind != rules.Merchants {
			continue
		}
		m, err := store.NewMerchantKey(store.MerchantID(r.Key))
		if err != nil {
			return fmt.Errorf("compare: %w", err)
		}
		merchants, ids = append(merchants, m), append(ids, m.ID())
	}
	c.result.Partners, c.result.Merchants, c.result.Tags = control.count(rules.Partners), len(ids), control.count(rules.Tags)
	if c.result.Events, err = c.events.compare("events", c.read, merchants); err != nil {
		return err
	}
	if err := c.compareCounts(ctx, merchants, ids); err != nil {
		return err
	}
	copied, err := c.dst.Control(ctx)
	if err != nil {
		return fmt.Errorf("compare: %w", err)
	}
	return cmp.Or(control.compare(copied), c.compareKeys(ctx, merchants), c.compareAudit(ctx))
}

// compareCounts compares how many events were copied with what both sides have counted. What Events leaves out would be
// missing in both.
func (c *copier) compareCounts(ctx context.Context, merchants []store.MerchantKey, ids []store.MerchantID) error {
	for side, data := range map[string]Data{"source": c.src, "target": c.dst} {
		usage, err := data.Usage(ctx, ids)
		if err != nil {
			return fmt.Errorf("count the events of the %s: %w", side, err)
		}
		for i, m := range merchants {
			if n := c.events[m].N; n != usage[i].Events {
				return fmt.Errorf("%w: merchant %s has %d events by the counts of the %s, but %d could be read. Run mtagd verify", errDiffers, ids[i], usage[i].Events, side, n)
			}
		}
	}
	return nil
}

// forgetMargin keeps event_ids out of a comparison that one side may have forgotten already.
const forgetMargin = 5 * time.Minute

// compareKeys compares links and remembered event_ids.
func (c *copier) compareKeys(ctx context.Context, merchants []store.MerchantKey) (err error) {
	type side struct{ links, eventIDs digests }
	since := time.Now().Add(forgetMargin - store.DedupeWindow).UnixMicro()
	var of [2]side
	g, inner := errgroup.WithContext(ctx)
	for i, data := range []Data{c.src, c.dst} {
		g.Go(func() error {
			s := &of[i]
			s.links, s.eventIDs = digests{}, digests{}
			var text []byte
			_, err := data.Keys(inner, 0, func(k *Key) error {
				text = append(text[:0], k.Key...)
				if k.IsLink() {
					s.links.add(k.Merchant, append(append(text, k.kind()), k.MUID...))
				} else if k.Seen >= since {
					s.eventIDs.add(k.Merchant, binary.BigEndian.AppendUint64(text, uint64(k.Seen)))
				}
				return nil
			})
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return fmt.Errorf("compare links: %w", err)
	}
	if c.result.Links, err = of[0].links.compare("links", of[1].links, merchants); err != nil {
		return err
	}
	c.result.EventIDs, err = of[0].eventIDs.compare("remembered event_ids", of[1].eventIDs, merchants)
	return err
}

// compareAudit compares the entries of the audit log. The target may have more, which the source has dropped since.
func (c *copier) compareAudit(ctx context.Context) error {
	var ids []store.AuditID // of the source
	var of [2]Digest
	for i, side := range []Data{c.src, c.dst} {
		if err := side.Audit(ctx, 0, func(e *store.AuditEntry) error {
			if i == 0 {
				ids = append(ids, e.ID)
			} else if _, found := slices.BinarySearch(ids, e.ID); !found {
				return nil
			}
			text, err := json.Marshal(e)
			of[i].add(text)
			return err
		}); err != nil {
			return fmt.Errorf("audit log: %w", err)
		}
	}
	if of[0] != of[1] {
		return fmt.Errorf("%w: the audit log has %d entries in the source and %d in the target, or their checksums differ", errDiffers, of[0].N, of[1].N)
	}
	c.result.Audit = of[0].N
	return nil
}

// compare returns an errDiffers unless both are the same.
func (c *Control) compare(copied *Control) error {
	for i := range max(len(c.Records), len(copied.Records)) {
		var want, got rules.Record
		if i < len(c.Records) {
			want = c.Records[i]
		}
		if i < len(copied.Records) {
			got = copied.Records[i]
		}
		if want.Kind != got.Kind || want.Key != got.Key || !bytes.Equal(want.Value, got.Value) {
			return fmt.Errorf("%w: control data, %s", errDiffers, cmp.Or(want.Kind, got.Kind))
		}
	}
	same := func(a, b File) bool { return a.Path == b.Path && bytes.Equal(a.Content, b.Content) }
	if !slices.EqualFunc(c.Files, copied.Files, same) {
		return fmt.Errorf("%w: certificates", errDiffers)
	}
	if !slices.EqualFunc(c.Documents, copied.Documents, func(a, b store.Document) bool {
		return store.CompareDocuments(a, b) == 0 && bytes.Equal(a.Content, b.Content)
	}) {
		return fmt.Errorf("%w: documents", errDiffers)
	}
	return nil
}
