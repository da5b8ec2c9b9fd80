package move

import (
	"cmp"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/cespare/xxhash/v2"
	"golang.org/x/sync/errgroup"

	"mtagd/store"
	"mtagd/store/local/codec"
)

// Digest is how many things there are, and a checksum of 128 bits: the sum of two hashes of each. It does not depend on their order.
type Digest struct{ N, a, b uint64 }

func (d *Digest) add(thing []byte) {
	var second xxhash.Digest
	second.ResetWithSeed(0x6d74616764)
	_, _ = second.Write(thing) // never fails
	d.N, d.a, d.b = d.N+1, d.a+xxhash.Sum64(thing), d.b+second.Sum64()
}

func (d *Digest) merge(o Digest) { d.N, d.a, d.b = d.N+o.N, d.a+o.a, d.b+o.b }

// hash returns a hash of a key and its value.
func (k *Key) hash() uint64 {
	var d xxhash.Digest
	d.Reset()
	_, _ = d.Write(k.Merchant[:]) // never fails
	_, _ = d.Write(k.Key)
	_, _ = d.Write(k.MUID)
	_, _ = d.Write(append(binary.BigEndian.AppendUint64(nil, uint64(k.Seen)), k.kind()...))
	return d.Sum64()
}

// digests are those of each merchant.
type digests map[codec.MerchantKey]*Digest

func (d digests) of(m codec.MerchantKey) *Digest {
	if d[m] == nil {
		d[m] = &Digest{}
	}
	return d[m]
}

// errDiffers is wrapped by the errors of a comparison that finds a difference.
var errDiffers = errors.New("source and target differ")

// compare returns an errDiffers unless both are the same.
func (d digests) compare(what string, target digests) error {
	all := maps.Clone(d)
	maps.Copy(all, target)
	for _, m := range slices.SortedFunc(maps.Keys(all), func(a, b codec.MerchantKey) int { return cmp.Compare(a.ID(), b.ID()) }) {
		source, copied := *d.of(m), *target.of(m)
		switch {
		case source.N != copied.N:
			return fmt.Errorf("%w: merchant %s has %d %s in the source, but %d in the target", errDiffers, m.ID(), source.N, what, copied.N)
		case source != copied:
			return fmt.Errorf("%w: the checksums of the %d %s of merchant %s", errDiffers, source.N, what, m.ID())
		}
	}
	return nil
}

func (d digests) sum() (all Digest) {
	for _, of := range d {
		all.merge(*of)
	}
	return all
}

// compareCopied compares what an earlier run has copied, except links and event_ids: each run copies these anew.
func (m *mover) compareCopied(ctx context.Context) error {
	last, err := m.dst.LastAudit(ctx)
	if err != nil {
		return err
	}
	if m.at > 0 || last > 0 {
		m.opt.Log.Info("the target has a part of this source already: it is compared", "received_up_to", time.UnixMicro(int64(m.at)).UTC())
	}
	if err := m.compareEvents(ctx, m.at); err != nil {
		return err
	}
	_, err = m.compareAudit(ctx, last)
	return err
}

// compareEvents compares the events up to a receipt that were not compared yet.
func (m *mover) compareEvents(ctx context.Context, upTo uint64) error {
	if upTo <= m.upTo {
		return nil
	}
	var of [2]digests
	g, inner := errgroup.WithContext(ctx)
	for i, side := range []Data{m.src, m.dst} {
		g.Go(func() error {
			of[i] = digests{}
			var text []byte
			n := uint64(0)
			return side.Events(inner, m.upTo, upTo, func(e *Event) error {
				text = e.append(text[:0])
				of[i].of(e.Merchant).add(text)
				if n++; i == 0 && n%1000 == 0 {
					m.opt.Progress(Comparing, n)
				}
				return nil
			})
		})
	}
	if err := g.Wait(); err != nil {
		return fmt.Errorf("compare events: %w", err)
	}
	control, err := m.src.Control(ctx)
	if err != nil {
		return fmt.Errorf("compare events: %w", err)
	}
	control.keepIn(of[0], of[1])
	if err := of[0].compare("events", of[1]); err != nil {
		return err
	}
	for merchant, d := range of[0] {
		m.events.of(merchant).merge(*d)
	}
	m.upTo = upTo
	return nil
}

// compareCounts compares how many events were moved with what the source has counted. What its Events leave out would be missing in
// both sides of compareEvents.
func (m *mover) compareCounts(ctx context.Context, control *Control) error {
	ids := make([]store.MerchantID, len(control.Merchants))
	for i := range ids {
		ids[i] = control.Merchants[i].ID
	}
	usage, err := m.src.Usage(ctx, ids)
	if err != nil {
		return fmt.Errorf("count events: %w", err)
	}
	for i, id := range ids {
		key, err := codec.NewMerchantKey(id)
		if err != nil {
			return fmt.Errorf("count events: %w", err)
		}
		if moved := m.events.of(key).N; moved != usage[i].Events {
			return fmt.Errorf("%w: merchant %s has %d events in the source, but %d could be read. Run mtagd verify", errDiffers, id, usage[i].Events, moved)
		}
	}
	return nil
}

// keepIn leaves out the digests of merchants that were deleted. The source may have removed what they had; the target will.
func (c *Control) keepIn(of ...digests) {
	kept := map[codec.MerchantKey]bool{}
	for _, m := range c.Merchants {
		if key, err := codec.NewMerchantKey(m.ID); err == nil {
			kept[key] = true
		}
	}
	for _, d := range of {
		maps.DeleteFunc(d, func(m codec.MerchantKey, _ *Digest) bool { return !kept[m] })
	}
}

func (e *Event) append(b []byte) []byte {
	b = binary.BigEndian.AppendUint64(append(b, e.Merchant[:]...), e.At.Seq)
	b = binary.BigEndian.AppendUint16(b, e.At.Index)
	b = binary.BigEndian.AppendUint64(b, uint64(e.Time))
	flags := byte(0)
	if e.Bot {
		flags |= 1
	}
	if e.ByClaim {
		flags |= 2
	}
	b = append(b, flags)
	b = codec.AppendPrefixed(codec.AppendPrefixed(b, e.Tag), e.Name)
	b = binary.AppendUvarint(b, uint64(len(e.MUID)))
	return append(append(b, e.MUID...), e.Raw...)
}

// forgetMargin keeps event_ids out of a comparison that one side may have forgotten already.
const forgetMargin = 5 * time.Minute

// compareRest compares everything but events, while the source is frozen.
func (m *mover) compareRest(ctx context.Context, control *Control) error {
	type side struct{ links, ids digests }
	since := time.Now().Add(forgetMargin - store.DedupeWindow).UnixMicro()
	var of [2]side
	g, inner := errgroup.WithContext(ctx)
	for i, data := range []Data{m.src, m.dst} {
		g.Go(func() error {
			s := &of[i]
			s.links, s.ids = digests{}, digests{}
			var text []byte
			_, err := data.Keys(inner, 0, func(k *Key) error {
				text = append(text[:0], k.Key...)
				if k.IsLink() {
					s.links.of(k.Merchant).add(append(append(text, k.kind()...), k.MUID...))
				} else if k.Seen >= since {
					s.ids.of(k.Merchant).add(binary.BigEndian.AppendUint64(text, uint64(k.Seen)))
				}
				return nil
			})
			return err
		})
	}
	var audit uint64
	g.Go(func() (err error) {
		audit, err = m.compareAudit(inner, math.MaxInt64)
		return err
	})
	var copied *Control
	g.Go(func() (err error) {
		copied, err = m.dst.Control(inner)
		return err
	})
	if err := g.Wait(); err != nil {
		return fmt.Errorf("compare: %w", err)
	}
	for _, s := range of {
		control.keepIn(s.links, s.ids)
	}
	m.result.Links, m.result.EventIDs, m.result.Audit = of[0].links.sum().N, of[0].ids.sum().N, audit
	return cmp.Or(
		of[0].links.compare("links", of[1].links),
		of[0].ids.compare("remembered event_ids", of[1].ids),
		control.compare(copied),
	)
}

// compareAudit compares the entries of the source's audit log up to one of them, and returns how many these are. The target may have
// further entries, which the source has dropped.
func (m *mover) compareAudit(ctx context.Context, upTo store.AuditID) (n uint64, err error) {
	if upTo == 0 {
		return 0, nil
	}
	var ids []store.AuditID // of the source
	var of [2]Digest
	for i, side := range []Data{m.src, m.dst} {
		if err := side.Audit(ctx, 0, func(e *store.AuditEntry) error {
			if e.ID > upTo {
				return nil
			}
			if side == m.src {
				ids = append(ids, e.ID)
			} else if _, found := slices.BinarySearch(ids, e.ID); !found {
				return nil
			}
			text, err := json.Marshal(e)
			of[i].add(text)
			return err
		}); err != nil {
			return 0, fmt.Errorf("audit log: %w", err)
		}
	}
	if of[0] != of[1] {
		err = fmt.Errorf("%w: the audit log has %d entries in the source and %d in the target, or their checksums differ", errDiffers, of[0].N, of[1].N)
	}
	return of[0].N, err
}

// compare returns an errDiffers unless both are the same.
func (c *Control) compare(copied *Control) error {
	for _, part := range []struct {
		what           string
		source, copied any
	}{
		{"default retention", c.Retention, copied.Retention},
		{"partners", c.Partners, copied.Partners},
		{"API keys", c.Keys, copied.Keys},
		{"merchants", c.Merchants, copied.Merchants},
		{"tags", c.Tags, copied.Tags},
		{"claims", c.Claims, copied.Claims},
		{"replies", c.Replies, copied.Replies},
		{"removals", c.Removals, copied.Removals},
		{"erasures", c.Erasures, copied.Erasures},
		{"certificates", c.Files, copied.Files},
		{"documents", c.Documents, copied.Documents},
	} {
		source, err := json.Marshal(part.source)
		if err != nil {
			return err
		}
		target, err := json.Marshal(part.copied)
		if err != nil {
			return err
		}
		if string(source) != string(target) {
			return fmt.Errorf("%w: %s", errDiffers, part.what)
		}
	}
	same := slices.EqualFunc(c.Suppressed, copied.Suppressed, func(a, b Suppressed) bool { return a.Merchant == b.Merchant && a.Key == b.Key })
	if !same {
		return fmt.Errorf("%w: persons whose events are refused", errDiffers)
	}
	return nil
}
