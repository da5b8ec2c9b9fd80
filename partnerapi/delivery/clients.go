package delivery

import (
	"bufio"
	"cmp"
	"context"
	"crypto/cipher"
	"crypto/rand"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"mtagd/partnerapi/delivery/kind"
	"mtagd/store"
)

// clients encrypts client details: the address and the user agent of the browser that sends an event, for ad platforms
// (store.Event.Client). Each hour has its own key. It is destroyed an hour or two later, if by then no destination that
// takes the details has an older event to deliver, a dead letter or a replay; otherwise at a later hour, and at the latest
// after store.ClientLife. Then no copy of the details can be decrypted any more.
//
// The keys of the hours are encrypted by the installation's key. They are in a file beside it, whose name ends in ".hours";
// with a database, in a table that no backup has. When the keys are lost, platforms get the events without client details.
//
// Encrypted client details are: the hour of the key, counted from 1970 (8 bytes, big-endian); a nonce; the ciphertext of
// AES-256-GCM, with the merchant's id as additional data. The plaintext is the length of the address (1 byte), the address
// (4 or 16 bytes), and the user agent.
type clients struct {
	s              *Service
	tended, logged time.Time // guarded by Service.telling
	from           int64     // guarded by Service.telling: the first hour whose key may be needed

	mu     sync.Mutex
	keys   map[int64]cipher.AEAD                // by hour
	latest int64                                // the hour whose key encrypts; nothing is encrypted while there is none
	active map[store.MerchantID]map[string]bool // the destinations that take it
}

const (
	maxClient   = 512 // bytes of an address and a user agent, with the length of the address
	clientHours = int64(store.ClientLife / time.Hour)
	hourLength  = 8
)

func hourOf(t time.Time) int64 { return t.Unix() / 3600 }

// note notes whether a destination takes client details.
func (c *clients) note(m store.MerchantID, id string, takes bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch of := c.active[m]; {
	case takes && of == nil:
		c.active[m] = map[string]bool{id: true}
	case takes:
		of[id] = true
	default:
		if delete(of, id); len(of) == 0 {
			delete(c.active, m)
		}
	}
}

// takesNow reports whether the destination of a route takes what is known of browsers: the merchant may have switched it off
// since.
func (s *Service) takesNow(ctx context.Context, rt *route) bool {
	if !rt.kind.Client {
		return false
	}
	m, err := s.Engine.Merchant(ctx, rt.Merchant)
	return err == nil && m.DeliverClientDetails
}

// takes reports whether a destination takes client details now.
func (s *Service) takes(d Destination) bool { return d.ID != "" && !d.Paused && s.kinds[d.Type].Client }

// Seal implements tag.Browsers. It returns nil when no destination of the merchant takes client details, or when the hour
// has no key yet.
func (s *Service) Seal(m store.MerchantID, address netip.Addr, userAgent []byte) []byte {
	c := s.clients
	c.mu.Lock()
	wanted, hour, aead := len(c.active[m]) > 0, c.latest, c.keys[c.latest]
	c.mu.Unlock()
	if !wanted || aead == nil {
		return nil
	}
	ip := address.AsSlice()
	text := append(append(append(make([]byte, 0, 1+len(ip)+len(userAgent)), byte(len(ip))), ip...), userAgent...)
	text = text[:min(len(text), maxClient)]
	b := binary.BigEndian.AppendUint64(make([]byte, 0, hourLength+len(text)+aead.Overhead()), uint64(hour))
	return aead.Seal(b, nil, text, []byte(m))
}

// MayTake implements tag.Browsers: the event must grant ad_storage and ad_user_data.
func (s *Service) MayTake(event []byte) bool {
	e := kind.Event{Received: store.Received{Event: store.Event{Raw: event}}}
	return e.Parse() == nil && kind.HasConsent(e.Fields, kind.AdConsent)
}

// Browser decrypts client details. It returns the zero Browser when their key is destroyed or lost.
func (s *Service) Browser(m store.MerchantID, sealed []byte) (b kind.Browser) {
	if len(sealed) < hourLength {
		return b
	}
	aead := s.clients.key(int64(binary.BigEndian.Uint64(sealed)))
	if aead == nil {
		return b
	}
	text, err := aead.Open(nil, nil, sealed[hourLength:], []byte(m))
	if err != nil || len(text) == 0 || len(text) <= int(text[0]) {
		return b
	}
	n := 1 + int(text[0])
	if ip, ok := netip.AddrFromSlice(text[1:n]); ok {
		b.Address = ip.String()
	}
	b.UserAgent = strings.ToValidUTF8(string(text[n:]), "")
	return b
}

// key returns the key of an hour; nil when it is destroyed or lost.
func (c *clients) key(hour int64) cipher.AEAD {
	if hour+clientHours <= hourOf(c.s.Now()) {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.keys[hour]
}

// tend destroys old keys, makes the key of this hour if a destination needs it, and reads the keys that other nodes have
// made. The caller holds Service.telling.
func (c *clients) tend(ctx context.Context) {
	now := c.s.Now()
	hour := hourOf(now)
	c.mu.Lock()
	needs, hasKey := len(c.active) > 0, c.keys[hour] != nil
	c.mu.Unlock()
	if hourOf(c.tended) == hour && (!needs || hasKey) && (c.s.Shared == nil || now.Sub(c.tended) < time.Minute) {
		return
	}
	if hourOf(c.tended) != hour {
		c.from = c.firstNeeded(ctx, hour)
	}
	if err := c.renew(ctx, hour, needs); err != nil {
		if ctx.Err() == nil && now.Sub(c.logged) > time.Minute {
			c.logged = now
			c.s.Log.Error("the keys of client details cannot be renewed: ad platforms get events without them", "error", err)
		}
		c.forget(hour)
		return
	}
	c.tended = now
}

// firstNeeded returns the first hour whose key a destination may still need.
func (c *clients) firstNeeded(ctx context.Context, hour int64) int64 {
	first := hour
	latest, err := c.s.Engine.Latest(ctx)
	end, _ := store.ParseCursor(latest)
	var docs []store.Document
	if err == nil {
		docs, err = c.s.Engine.Destinations(ctx, "")
	}
	for _, doc := range docs {
		d, bad := decodeDestination(doc)
		if bad != nil || !c.s.kinds[d.Type].Client {
			continue
		}
		at, failed := c.s.reached(ctx, d)
		if failed != nil {
			err = failed
			break
		}
		if at.Compare(end) < 0 {
			first = min(first, int64(at.Seq/uint64(time.Hour/time.Microsecond)))
		}
	}
	oldest := hour - clientHours + 1
	if err != nil { // they are kept for as long as they may be
		c.s.Log.Warn("the cursors of destinations cannot be read: keys of client details are kept", "error", err)
		return oldest
	}
	return max(oldest, first-1) // an event is recorded a little later than it is encrypted
}

// reached returns the position up to which a destination has everything. With dead letters or replays, it is the beginning
// of the feed.
func (s *Service) reached(ctx context.Context, d Destination) (store.Position, error) {
	st, err := s.stateOf(ctx, d.Merchant, d.ID)
	places := []store.Cursor{cmp.Or(st.Cursor, d.Start)}
	if st.Attached && err == nil {
		var head state
		head, err = s.stateOf(ctx, "", s.shardName(s.shardOf(d.Merchant)))
		places[0] = max(places[0], head.Cursor) // cursors sort as places do
	}
	for _, of := range st.Retry {
		places = append(places, of.After)
	}
	if st.Letters > 0 || len(st.Replays) > 0 {
		places[0] = ""
	}
	at, _ := store.ParseCursor(slices.Min(places))
	return at, err
}

// forget drops keys that are too old from memory, when the file or table cannot be written.
func (c *clients) forget(hour int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.latest = hour
	maps.DeleteFunc(c.keys, func(of int64, _ cipher.AEAD) bool { return of+clientHours <= hour })
}

func (c *clients) renew(ctx context.Context, hour int64, needs bool) error {
	var added []byte
	if needs {
		var raw [32]byte
		_, _ = rand.Read(raw[:]) // never fails
		var err error
		if added, err = json.Marshal(c.s.Keys.seal(placeOf(hour), string(raw[:]))); err != nil {
			return err
		}
	}
	store := c.s.Keys.shortKeys
	if c.s.Shared != nil {
		store = c.s.Shared.ShortKeys
	}
	all, err := store(ctx, c.from, hour, added)
	if err != nil {
		return err
	}
	keys := map[int64]cipher.AEAD{}
	for of, text := range all {
		var box sealed
		if json.Unmarshal(text, &box) != nil {
			continue // lost
		}
		if raw, err := c.s.Keys.open(placeOf(of), box); err == nil { // else lost
			if keys[of], err = newAEAD([]byte(raw)); err != nil {
				return err
			}
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.keys, c.latest = keys, hour
	return nil
}

func placeOf(hour int64) string { return fmt.Sprintf("hour/%d", hour) }

// shortKeys is store.Shared.ShortKeys with a file. Each line has the hour and the key, in base64.
func (k *Keyring) shortKeys(_ context.Context, from, hour int64, added []byte) (map[int64][]byte, error) {
	path := k.path + ".hours"
	before, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	keys := map[int64][]byte{}
	for lines := bufio.NewScanner(strings.NewReader(string(before))); lines.Scan(); {
		var of int64
		var text []byte
		var encoded string
		_, err := fmt.Sscan(lines.Text(), &of, &encoded)
		if err == nil {
			text, err = base64.StdEncoding.DecodeString(encoded)
		}
		if err == nil && of >= from && of <= hour+1 { // what is damaged is lost; later ones are of a clock that was wrong, and would be kept too long
			keys[of] = text
		}
	}
	if added != nil && keys[hour] == nil {
		keys[hour] = added
	}
	var after strings.Builder
	for _, of := range slices.Sorted(maps.Keys(keys)) {
		fmt.Fprintf(&after, "%d %s\n", of, base64.StdEncoding.EncodeToString(keys[of]))
	}
	if after.String() == string(before) {
		return keys, nil
	}
	return keys, writeFile(path, after.String())
}

// mask returns a function that replaces the client details of some events in a text that will be kept: an answer, or a
// reason from it. Read the answer first: a visitor chooses the user agent, so it may equal any part of the answer.
func mask(events []*kind.Event) func(string) string {
	var pairs []string
	for _, e := range events {
		for _, text := range []string{e.Browser.Address, e.Browser.UserAgent} {
			if text != "" {
				quoted, _ := json.Marshal(text) // cannot fail: a string
				inJSON := string(quoted[1 : len(quoted)-1])
				pairs = append(pairs, text, hidden, strings.ReplaceAll(text, "/", `\/`), hidden, inJSON, hidden)
			}
		}
	}
	if pairs == nil {
		return func(text string) string { return text }
	}
	return strings.NewReplacer(pairs...).Replace
}

// hidden stands in the place of a client detail.
const hidden = "…"
