package delivery

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"mtagd/partnerapi/delivery/filter"
	"mtagd/partnerapi/delivery/kind"
	"mtagd/store"
)

// Limits of destinations.
const (
	maxNames      = 100
	secretOverlap = 24 * time.Hour // a replaced secret signs too
	maxSecret     = 4000           // bytes
)

// Destination is where events of a merchant go, as it is stored.
type Destination struct {
	ID           string              `json:"id"`
	Merchant     store.MerchantID    `json:"merchantId"`
	Partner      store.PartnerID     `json:"partnerId"`
	Type         string              `json:"type"`
	Name         string              `json:"name"`
	Settings     json.RawMessage     `json:"settings,omitempty"`
	Secrets      map[string][]sealed `json:"secrets,omitempty"` // by name, the newest first
	Events       []string            `json:"events,omitempty"`  // nil: all
	Filter       string              `json:"filter,omitempty"`
	Mapping      kind.Mapping        `json:"mapping,omitempty"`
	Consent      []string            `json:"consent,omitempty"` // categories that must be granted
	Paused       bool                `json:"paused,omitempty"`
	PausedReason string              `json:"pausedReason,omitempty"` // when the service has paused it
	CreatedAt    time.Time           `json:"createdAt"`
	Start        store.Cursor        `json:"start"` // events before it are not delivered
	Replays      []Replay            `json:"replays,omitempty"`
}

// Replay asks for events to be sent again.
type Replay struct {
	ID          uint64       `json:"id"` // increases
	At          time.Time    `json:"at"`
	From        *time.Time   `json:"from,omitempty"` // of event_time
	To          *time.Time   `json:"to,omitempty"`
	UpTo        store.Cursor `json:"upTo,omitempty"` // events that came in later are delivered anyway
	DeadLetters bool         `json:"deadLetters,omitempty"`
	Discard     bool         `json:"discard,omitempty"`  // of the dead letters
	Delivery    string       `json:"delivery,omitempty"` // the events of one delivery
}

// maxReplays bounds the replays of a destination that are remembered, and so those under way.
const maxReplays = 10

// Change is what a merchant sets. A nil field stays as it is, and settings that are the JSON null.
type Change struct {
	Type     *string           `json:"type"`
	Name     *string           `json:"name"`
	Settings json.RawMessage   `json:"settings"`
	Secrets  map[string]string `json:"secrets"` // empty: make a new one
	Events   *[]string         `json:"events"`
	Filter   *string           `json:"filter"`
	Mapping  *kind.Mapping     `json:"mapping"`
	Consent  *[]string         `json:"consent"`
	Paused   *bool             `json:"paused"`
}

// route is a destination, ready to be used.
type route struct {
	Destination
	selection
	kind    kind.Kind
	target  kind.Target
	filter  *filter.Filter
	consent []string
	until   time.Time // when a secret ends to be valid: then the route must be opened again; zero: never
}

// selection decides which events a destination may take, without parsing their fields, and how it takes them.
type selection struct {
	names  []string // nil: all
	noBots bool
	limits kind.Limits
}

func (s selection) wants(e *store.Received) bool {
	return (s.names == nil || slices.Contains(s.names, e.Name)) && !(e.Bot && s.noBots)
}

// open checks a destination, and makes it ready to be used.
func (s *Service) open(d Destination) (*route, error) {
	k, ok := s.kinds[d.Type]
	if !ok {
		return nil, store.Invalid("type", "must be one of %s", strings.Join(slices.Sorted(maps.Keys(s.kinds)), ", "))
	}
	r := &route{Destination: d, kind: k, consent: append(slices.Clone(k.Consent), d.Consent...)}
	if d.Filter != "" {
		f, err := filter.Compile(d.Filter)
		if err != nil {
			return nil, store.Invalid("filter", "is wrong: %v", err)
		}
		r.filter = f
	}
	if err := d.Mapping.Check(); err != nil {
		return nil, err
	}
	secrets := map[string][]string{}
	now := s.Now()
	for name, all := range d.Secrets {
		for _, of := range all {
			if !of.Until.IsZero() && !of.Until.After(now) {
				continue
			}
			text, err := s.Keys.open(d.place(name), of)
			if err != nil {
				return nil, err
			}
			secrets[name] = append(secrets[name], text)
			if !of.Until.IsZero() && (r.until.IsZero() || of.Until.Before(r.until)) {
				r.until = of.Until
			}
		}
	}
	for _, secret := range k.Secrets {
		if secret.Required && len(secrets[secret.Name]) == 0 {
			return nil, store.Invalid("secrets."+secret.Name, "is required")
		}
	}
	var err error
	if r.target, err = k.Open(kind.Options{Settings: d.Settings, Mapping: d.Mapping, Secrets: secrets, AllowHTTP: len(s.Allow) > 0}); err != nil {
		return nil, err
	}
	limits := r.target.Limits()
	limits.Wait = min(limits.Wait, cmp.Or(s.Interval, limits.Wait))
	r.selection = selection{d.Events, len(k.Consent) > 0, limits}
	return r, nil
}

// place binds a sealed secret to its destination and its name.
func (d *Destination) place(name string) string { return string(d.Merchant) + "/" + d.ID + "/" + name }

// deliveryID returns the id of an event at a destination.
func (d *Destination) deliveryID(id store.EventID) string {
	var text [80]byte
	sum := sha256.Sum256(append(append(append(text[:0], d.ID...), '/'), id...))
	return "msg_" + base64.RawURLEncoding.EncodeToString(sum[:18])
}

// apply changes a destination. made are the secrets that it has made. fields are the names of what has changed.
func (s *Service) apply(d *Destination, c Change) (made map[string]string, fields []string, err error) {
	if c.Type != nil && d.Type != "" && d.Type != *c.Type {
		return nil, nil, store.Invalid("type", "cannot be changed")
	}
	receiver := kind.Receiver(d.Settings)
	set := func(name string, given bool, do func()) {
		if given {
			fields = append(fields, name)
			do()
		}
	}
	set("type", c.Type != nil, func() { d.Type = *c.Type })
	set("name", c.Name != nil, func() { d.Name, err = store.CheckName("name", *c.Name) })
	set("settings", c.Settings != nil && string(c.Settings) != "null", func() { d.Settings = c.Settings })
	set("events", c.Events != nil, func() { d.Events = append([]string(nil), *c.Events...) })
	set("filter", c.Filter != nil, func() { d.Filter = strings.TrimSpace(*c.Filter) })
	set("mapping", c.Mapping != nil, func() { d.Mapping = *c.Mapping })
	set("consent", c.Consent != nil, func() { d.Consent = *c.Consent })
	set("paused", c.Paused != nil, func() { d.Paused, d.PausedReason = *c.Paused, "" })
	if err != nil {
		return nil, nil, err
	}
	if err := d.check(); err != nil {
		return nil, nil, err
	}
	k, ok := s.kinds[d.Type]
	if !ok {
		_, err := s.open(*d)
		return nil, nil, err
	}
	for _, secret := range k.Secrets {
		if _, isGiven := c.Secrets[secret.Name]; len(d.Secrets[secret.Name]) > 0 && !isGiven && !secret.Signs && kind.Receiver(d.Settings) != receiver {
			return nil, nil, store.Invalid("secrets."+secret.Name, "must be given again, because the settings send it to another server")
		}
	}
	if made, err = s.applySecrets(d, k, c.Secrets); err != nil {
		return nil, nil, err
	}
	for _, name := range slices.Sorted(maps.Keys(c.Secrets)) {
		fields = append(fields, "secrets."+name)
	}
	_, err = s.open(*d)
	return made, fields, err
}

// check returns an error unless the names of events and categories can be used.
func (d *Destination) check() error {
	notName := func(name string) bool { return !store.IsEventName(name) }
	notCategory := func(s string) bool {
		return s == "" || len(s) > 40 || strings.Trim(s, "abcdefghijklmnopqrstuvwxyz_") != ""
	}
	switch {
	case slices.ContainsFunc(d.Events, notName):
		return store.Invalid("events", "must be names of events, such as Purchase")
	case len(d.Events) > maxNames:
		return store.Invalid("events", "must be at most %d names", maxNames)
	case slices.ContainsFunc(d.Consent, notCategory):
		return store.Invalid("consent", "must be categories of Consent Mode, such as analytics_storage")
	case len(d.Consent) > 10:
		return store.Invalid("consent", "must be at most 10")
	}
	return nil
}

func (s *Service) applySecrets(d *Destination, k kind.Kind, given map[string]string) (made map[string]string, err error) {
	d.Secrets = maps.Clone(d.Secrets)
	if d.Secrets == nil {
		d.Secrets = map[string][]sealed{}
	}
	made = map[string]string{}
	for name := range given {
		if !slices.ContainsFunc(k.Secrets, func(s kind.Secret) bool { return s.Name == name }) {
			return nil, store.Invalid("secrets."+name, "is not a secret of this type of destination")
		}
	}
	for _, of := range k.Secrets {
		text, isGiven := given[of.Name]
		if !isGiven && (len(d.Secrets[of.Name]) > 0 || of.New == nil) {
			continue
		}
		if text == "" {
			if of.New == nil {
				return nil, store.Invalid("secrets."+of.Name, "must not be empty")
			}
			text = of.New()
			made[of.Name] = text
		}
		if len(text) > maxSecret {
			return nil, store.Invalid("secrets."+of.Name, "must have at most %d bytes", maxSecret)
		}
		if of.Check != nil {
			if err := of.Check(text); err != nil {
				return nil, store.Invalid("secrets."+of.Name, "%v", err)
			}
		}
		all := []sealed{s.Keys.seal(d.place(of.Name), text)}
		if old := d.Secrets[of.Name]; len(old) > 0 && of.New != nil { // where the receiver checks it
			all = append(all, old[0])
			all[1].Until = s.Now().UTC().Add(secretOverlap)
		}
		d.Secrets[of.Name] = all
	}
	return made, nil
}

// Create creates a destination. made are the secrets that were made for it: nobody can read them again. KindLimited: the
// merchant has store.MaxDestinations.
func (s *Service) Create(ctx context.Context, m store.Merchant, c Change) (d Destination, made map[string]string, err error) {
	if c.Type == nil {
		return d, nil, store.Invalid("type", "is required")
	}
	if c.Name == nil {
		c.Name = c.Type
	}
	start, err := s.Engine.Latest(ctx)
	if err != nil {
		return d, nil, err
	}
	d = Destination{ID: "dst_" + rand.Text(), Merchant: m.ID, Partner: m.Partner, CreatedAt: s.Now().UTC(), Start: start}
	if made, _, err = s.apply(&d, c); err != nil {
		return d, nil, err
	}
	err = s.update(ctx, m, d.ID, func(old *Destination) (string, error) {
		*old = d
		return "", nil
	})
	return d, made, err
}

var errNoDestination = store.NotFound("destination")

// update changes a destination in one transaction. The change gets the zero Destination when there is none, and makes one
// or leaves it so; then update returns errNoDestination. It returns what the audit log says of the change.
func (s *Service) update(ctx context.Context, m store.Merchant, id string, change func(d *Destination) (detail string, err error)) error {
	var d Destination
	err := s.Engine.UpdateDestination(ctx, m.ID, id, func(content []byte) ([]byte, store.AuditEntry, error) {
		d = Destination{}
		if content != nil {
			if err := json.Unmarshal(content, &d); err != nil {
				return nil, store.AuditEntry{}, err
			}
		}
		detail, err := change(&d)
		if err != nil {
			return nil, store.AuditEntry{}, err
		}
		action := store.DestinationChanged
		switch {
		case d.ID == "" && content == nil:
			return nil, store.AuditEntry{}, errNoDestination
		case d.ID == "":
			return nil, store.AboutMerchant(store.DestinationDeleted, m, id+" "+detail), nil
		case content == nil:
			action = store.DestinationCreated
			detail = d.Type
		}
		text, err := json.Marshal(d)
		return text, store.AboutMerchant(action, m, id+" "+detail), err
	})
	if err == nil {
		s.tell(context.WithoutCancel(ctx))
	}
	return err
}

// Update changes a destination. made is as for Create. KindNotFound: destination.
func (s *Service) Update(ctx context.Context, m store.Merchant, id string, c Change) (d Destination, made map[string]string, err error) {
	err = s.update(ctx, m, id, func(old *Destination) (string, error) {
		if old.ID == "" {
			return "", errNoDestination
		}
		var fields []string
		var err error
		made, fields, err = s.apply(old, c)
		d = *old
		return strings.Join(fields, ", "), err
	})
	return d, made, err
}

// Delete deletes a destination, and what is known of its deliveries. KindNotFound: destination.
func (s *Service) Delete(ctx context.Context, m store.Merchant, id string) error {
	return s.update(ctx, m, id, func(d *Destination) (string, error) {
		kept := d.Type
		*d = Destination{}
		return kept, nil
	})
}

// Replay requests that events are sent again, with the same ids. KindNotFound: destination. KindBusy: maxReplays are
// unfinished.
func (s *Service) Replay(ctx context.Context, m store.Merchant, id string, r Replay) (d Destination, err error) {
	if r.UpTo, err = s.Engine.Latest(ctx); err != nil {
		return d, err
	}
	st, err := s.stateOf(ctx, m.ID, id)
	if err != nil {
		return d, err
	}
	err = s.update(ctx, m, id, func(old *Destination) (string, error) {
		if old.ID == "" {
			return "", errNoDestination
		}
		open := map[uint64]bool{}
		for _, of := range st.Replays {
			open[of.Of] = true
		}
		r.ID, r.At = 1, s.Now().UTC()
		for _, of := range old.Replays {
			if r.ID = of.ID + 1; of.ID > st.Replayed {
				open[of.ID] = true
			}
		}
		if len(open) >= maxReplays {
			return "", store.Busy("too many replays of the destination are unfinished")
		}
		old.Replays = append(slices.Clone(old.Replays), r)
		old.Replays = old.Replays[max(0, len(old.Replays)-maxReplays):]
		d = *old
		return fmt.Sprintf("replay %d", r.ID), nil
	})
	return d, err
}

// Get returns a destination. KindNotFound: destination.
func (s *Service) Get(ctx context.Context, m store.MerchantID, id string) (d Destination, err error) {
	doc, err := s.Engine.Destination(ctx, m, id)
	if err != nil {
		return d, err
	}
	return decodeDestination(doc)
}

// List returns the destinations of a merchant, the oldest first.
func (s *Service) List(ctx context.Context, m store.MerchantID) (all []Destination, err error) {
	docs, err := s.Engine.Destinations(ctx, m)
	for _, doc := range docs {
		d, err := decodeDestination(doc)
		if err != nil {
			return nil, err
		}
		all = append(all, d)
	}
	store.Sort(all, func(a, b Destination) int { return a.CreatedAt.Compare(b.CreatedAt) })
	return all, err
}

// RotateKey makes a new key of the installation, and encrypts all secrets by it. It returns how many destinations these are.
func (s *Service) RotateKey(ctx context.Context) (n int, err error) {
	if err := s.Keys.Rotate(); err != nil {
		return 0, err
	}
	docs, err := s.Engine.Destinations(ctx, "")
	if err != nil {
		return 0, err
	}
	for _, doc := range docs {
		m, err := s.Engine.Merchant(ctx, doc.Merchant)
		if store.KindOf(err) == store.KindNotFound {
			continue
		} else if err != nil {
			return n, err
		}
		if err := s.update(ctx, m, doc.ID, func(d *Destination) (string, error) { return "key", s.reseal(d) }); err != nil {
			return n, fmt.Errorf("destination %s: %w", doc.ID, err)
		}
		n++
	}
	return n, nil
}

func (s *Service) reseal(d *Destination) error {
	for name, all := range d.Secrets {
		for i, of := range all {
			if of.Key == s.Keys.current()[0].id {
				continue
			}
			text, err := s.Keys.open(d.place(name), of)
			if err != nil {
				return err
			}
			all[i] = s.Keys.seal(d.place(name), text)
			all[i].Until = of.Until
		}
	}
	return nil
}
