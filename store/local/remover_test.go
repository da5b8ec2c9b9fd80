package local

import (
	"bufio"
	"cmp"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"pgregory.net/rapid"

	"mtagd/store"
	"mtagd/store/testenv"
)

// lifeCommand is what TestDrillLife has its child do. The child is an engine in a process of its own.
type lifeCommand struct {
	Op       string // the name of a function in lifeOps
	Now      time.Time
	Merchant store.MerchantID
	Visitor  int
	ByEmail  bool
	Suppress bool
	Days     store.Retention
	Events   []lifeEvent
	After    store.Cursor
}

// lifeEvent is an event that the child records. N is in its body.
type lifeEvent struct {
	N                int
	Visitor          int
	HasMUID, HasMail bool
	Time             time.Time
}

type lifeAnswer struct {
	Err       string
	Outcomes  []store.Outcome
	Merchants []store.MerchantID
	Listed    []int // numbers of events, in the order of receipt
	Total     int
	Summed    int
	Feed      []int
	Cursor    store.Cursor
}

// lifeEnv is the data directory of a child of TestDrillLife.
const lifeEnv = "LOCAL_TEST_LIFE"

// lifeChild is the engine in the child.
type lifeChild struct {
	*engine
	now atomic.Pointer[time.Time]
}

// serveLife opens an engine and does what the lines of standard input say, until it is killed.
func serveLife(dir string) {
	c := &lifeChild{}
	c.now.Store(&day0)
	commands, answers := bufio.NewScanner(os.Stdin), json.NewEncoder(os.Stdout)
	commands.Buffer(nil, 10<<20)
	for commands.Scan() {
		var command lifeCommand
		if err := json.Unmarshal(commands.Bytes(), &command); err != nil {
			panic(err)
		}
		c.now.Store(&command.Now)
		if c.engine == nil {
			e, err := Open(dir, Options{Log: quiet, Now: func() time.Time { return *c.now.Load() }, ArchiveRun: 3000, eager: true})
			if err != nil {
				panic(err)
			}
			c.engine = e.(*engine)
		}
		var a lifeAnswer
		if err := lifeOps[command.Op](c, &command, &a); err != nil {
			a.Err = err.Error()
		}
		if err := answers.Encode(a); err != nil {
			panic(err)
		}
	}
}

var lifeOps = map[string]func(c *lifeChild, command *lifeCommand, a *lifeAnswer) error{
	"begin": func(c *lifeChild, _ *lifeCommand, a *lifeAnswer) error {
		p, err := c.AddPartner(ctx, "Acme")
		for range 3 {
			var m store.Merchant
			if err == nil {
				m, err = c.AddMerchant(ctx, p.ID, store.NewMerchant{Name: "Shop"})
			}
			a.Merchants = append(a.Merchants, m.ID)
		}
		return err
	},
	"open": func(*lifeChild, *lifeCommand, *lifeAnswer) error { return nil },
	"record": func(c *lifeChild, command *lifeCommand, a *lifeAnswer) error {
		var marks []store.Mark
		for _, e := range command.Events {
			body := map[string]any{"event": "Visit", "n": e.N, "text": lifeWord(command.Merchant, e.Visitor)}
			mark := store.Mark{Merchant: command.Merchant, Tag: "cs_a", Name: "Visit", Time: e.Time}
			if e.HasMUID {
				mark.Identity.MUID, mark.Identity.Source = lifeMUID(command.Merchant, e.Visitor), store.BySecret
			}
			if e.HasMail {
				mark.Identity.Add(store.Email, lifeMail(command.Merchant, e.Visitor))
				body["email"] = lifeMail(command.Merchant, e.Visitor)
			}
			var err error
			if mark.Raw, err = json.Marshal(body); err != nil {
				return err
			}
			marks = append(marks, mark)
		}
		err := c.Record(ctx, marks)
		for _, m := range marks {
			a.Outcomes = append(a.Outcomes, m.Outcome)
		}
		return err
	},
	"erase": func(c *lifeChild, command *lifeCommand, _ *lifeAnswer) error {
		id := store.Identity{MUID: lifeMUID(command.Merchant, command.Visitor)}
		if command.ByEmail {
			id = store.Identity{}
			id.Add(store.Email, lifeMail(command.Merchant, command.Visitor))
		}
		_, err := c.Erase(ctx, command.Merchant, id, store.ErasureOptions{Suppress: command.Suppress})
		return err
	},
	"keep": func(c *lifeChild, command *lifeCommand, _ *lifeAnswer) error {
		_, err := c.UpdateMerchant(ctx, command.Merchant, func(m store.Merchant) store.Merchant {
			m.Retention = command.Days
			return m
		})
		return err
	},
	"delete": func(c *lifeChild, command *lifeCommand, _ *lifeAnswer) error {
		_, err := c.DeleteMerchant(ctx, command.Merchant)
		return err
	},
	"expire": func(c *lifeChild, _ *lifeCommand, _ *lifeAnswer) error {
		go func() { _ = c.remover.do(c.opened, c.remover.expire) }() // a kill may cut it off
		return nil
	},
	"settle": func(c *lifeChild, _ *lifeCommand, _ *lifeAnswer) error {
		for {
			if left, err := c.Removals(ctx); err != nil || len(left)+len(c.Unfinished()) == 0 {
				return cmp.Or(err, c.remover.do(ctx, c.remover.expire))
			}
			time.Sleep(time.Millisecond)
		}
	},
	"read": func(c *lifeChild, command *lifeCommand, a *lifeAnswer) error {
		page, err := c.Events(ctx, store.Query{Merchant: command.Merchant, SortBy: store.ByTime, Limit: 100_000})
		if err != nil {
			return err
		}
		slices.SortFunc(page.Events, func(a, b store.Event) int { return cmp.Compare(a.ID, b.ID) })
		for _, e := range page.Events {
			a.Listed = append(a.Listed, numberOf(e.Raw))
		}
		a.Total = page.Total
		summary, err := c.Summary(ctx, store.SummaryQuery{Merchants: []store.MerchantID{command.Merchant}, Now: command.Now})
		if err != nil {
			return err
		}
		a.Summed = summary.All.Total
		for q := (store.FeedQuery{Merchants: []store.MerchantID{command.Merchant}, After: command.After}); ; {
			end, err := c.Feed(ctx, q, func(e *store.Received) bool {
				a.Feed = append(a.Feed, numberOf(e.Raw))
				return len(a.Feed)%7 != 0 // in many calls
			})
			if err != nil {
				return err
			}
			if q.After, a.Cursor = end.Cursor, end.Cursor; !end.More {
				return nil
			}
		}
	},
}

func numberOf(raw []byte) int {
	var body struct{ N int }
	if err := json.Unmarshal(raw, &body); err != nil {
		panic(err)
	}
	return body.N
}

func lifeWord(m store.MerchantID, visitor int) string {
	return fmt.Sprintf("word-%d-of-%s", visitor, m)
}
func lifeMail(m store.MerchantID, visitor int) string {
	return fmt.Sprintf("mail-%d@%s.example", visitor, m)
}
func lifeMUID(m store.MerchantID, visitor int) store.MUID {
	return store.MUID(fmt.Sprintf("muid-%d-of-%s", visitor, m))
}

// lifeModel is what the engine must have.
type lifeModel struct {
	t   *rapid.T
	dir string
	now time.Time
	n   int // of the last event

	merchants []store.MerchantID
	events    map[store.MerchantID][]lifeEvent // in the order of receipt
	days      map[store.MerchantID]store.Retention
	persons   map[store.MerchantID]map[int]*lifePerson
	gone      []string // texts that no file has after settle
	read      map[store.MerchantID]store.Cursor
	readUpTo  map[store.MerchantID]int // the last number that a follower of the feed has read
	unsettled bool
	cut       func(unheard, kill func()) // ends the process, or cuts the power

	child    *exec.Cmd
	commands io.WriteCloser
	answers  *json.Decoder
}

// lifePerson is what the engine knows of a visitor.
type lifePerson struct {
	linked                         bool
	muidSuppressed, mailSuppressed bool
	erasing                        bool // until settle
}

// launch starts a child.
func (l *lifeModel) launch() {
	l.child = exec.Command(os.Args[0])
	l.child.Env = append(os.Environ(), lifeEnv+"="+l.dir)
	l.child.Stderr = os.Stderr
	var answers io.Reader
	var err error
	if l.commands, err = l.child.StdinPipe(); err == nil {
		answers, err = l.child.StdoutPipe()
	}
	if err == nil {
		err = l.child.Start()
	}
	testenv.Check(l.t, err)
	l.answers = json.NewDecoder(bufio.NewReader(answers))
}

// kill ends the child at once.
func (l *lifeModel) kill() {
	testenv.Check(l.t, l.child.Process.Kill())
	_ = l.child.Wait() // says that it was killed
}

// do has the child do something.
func (l *lifeModel) do(c lifeCommand) (a lifeAnswer) {
	c.Now = l.now
	testenv.Check(l.t, json.NewEncoder(l.commands).Encode(c))
	if err := l.answers.Decode(&a); err != nil {
		l.t.Fatalf("%s: %v", c.Op, err)
	}
	if a.Err != "" {
		l.t.Fatalf("%s: %s", c.Op, a.Err)
	}
	return a
}

func (l *lifeModel) merchant() store.MerchantID {
	return rapid.SampledFrom(l.merchants).Draw(l.t, "merchant")
}

func (l *lifeModel) person(m store.MerchantID, visitor int) *lifePerson {
	p := l.persons[m][visitor]
	if p == nil {
		p = &lifePerson{}
		l.persons[m][visitor] = p
	}
	return p
}

// record records events of visitors of whom no erasure is under way: whether that would concern them depends on its progress.
func (l *lifeModel) record() {
	m := l.merchant()
	c := lifeCommand{Op: "record", Merchant: m}
	var want []store.Outcome
	for range rapid.IntRange(1, 60).Draw(l.t, "events") {
		e := lifeEvent{
			Visitor: rapid.IntRange(0, 9).Draw(l.t, "visitor"),
			HasMUID: rapid.IntRange(0, 3).Draw(l.t, "muid") > 0,
			Time:    l.now.Add(-time.Duration(rapid.IntRange(0, 40*24).Draw(l.t, "hours")) * time.Hour),
		}
		e.HasMail = !e.HasMUID || rapid.Bool().Draw(l.t, "mail")
		p := l.person(m, e.Visitor)
		if p.erasing {
			continue
		}
		l.n++
		e.N = l.n
		c.Events = append(c.Events, e)
		switch {
		case e.HasMail && p.mailSuppressed:
			want = append(want, store.Suppressed)
		case !e.HasMUID && !p.linked:
			want = append(want, store.Unresolved)
		case p.muidSuppressed:
			want = append(want, store.Suppressed)
		default:
			p.linked = p.linked || e.HasMail
			l.events[m] = append(l.events[m], e)
			want = append(want, store.Recorded)
		}
	}
	if got := l.do(c).Outcomes; !slices.Equal(got, want) {
		l.t.Fatalf("the outcomes are %v, want %v, of %+v", got, want, c.Events)
	}
}

func (l *lifeModel) erase() {
	m := l.merchant()
	c := lifeCommand{Op: "erase", Merchant: m, Visitor: rapid.IntRange(0, 9).Draw(l.t, "visitor"), ByEmail: rapid.Bool().Draw(l.t, "by email"),
		Suppress: rapid.Bool().Draw(l.t, "suppress")}
	p := l.person(m, c.Visitor)
	if p.erasing {
		return
	}
	l.do(c)
	l.unsettled = true
	whole := !c.ByEmail || p.linked
	p.erasing = true
	if c.Suppress {
		p.mailSuppressed = p.mailSuppressed || c.ByEmail || p.linked
		p.muidSuppressed = p.muidSuppressed || whole
	}
	if whole {
		l.events[m] = slices.DeleteFunc(l.events[m], func(e lifeEvent) bool { return e.Visitor == c.Visitor })
		p.linked = false
		l.gone = append(l.gone, lifeWord(m, c.Visitor), lifeMail(m, c.Visitor), string(lifeMUID(m, c.Visitor)))
	}
}

// settle waits for what goes on in the background, and compares everything.
func (l *lifeModel) settle() {
	l.do(lifeCommand{Op: "settle"})
	l.unsettled = false
	for _, persons := range l.persons {
		for _, p := range persons {
			p.erasing = false
		}
	}
	for _, m := range l.merchants {
		var want, news []int
		for _, e := range l.events[m] {
			if days := l.days[m]; days > 0 && e.Time.Before(l.now.AddDate(0, 0, -int(days))) {
				continue
			}
			if want = append(want, e.N); e.N > l.readUpTo[m] {
				news = append(news, e.N)
			}
		}
		a := l.do(lifeCommand{Op: "read", Merchant: m, After: l.read[m]})
		if !slices.Equal(a.Listed, want) || a.Total != len(want) || a.Summed != len(want) {
			l.t.Fatalf("listed are %v of %d, counted %d, want %v", a.Listed, a.Total, a.Summed, want)
		}
		if !slices.Equal(a.Feed, news) {
			l.t.Fatalf("the feed goes on with %v, want %v", a.Feed, news)
		}
		l.read[m], l.readUpTo[m] = a.Cursor, l.n
	}
	// What came in again since is no trace of what was erased.
	has := map[string]bool{}
	for m, events := range l.events {
		for _, e := range events {
			has[lifeWord(m, e.Visitor)], has[lifeMail(m, e.Visitor)], has[string(lifeMUID(m, e.Visitor))] = true, true, true
		}
	}
	l.gone = slices.DeleteFunc(l.gone, func(text string) bool { return has[text] })
	if found := textsIn(l.dir, l.gone...); len(found) > 0 {
		l.t.Fatal(found)
	}
}

// textsIn is filesWith for rapid's T.
func textsIn(dir string, texts ...string) []string {
	found, err := findTexts(dir, texts...)
	if err != nil {
		return []string{err.Error()}
	}
	return found
}

var lifeDisk = flag.String("lifedisk", "", "TestDrillLife cuts the power of a disk with this file system (newLossyDisk) instead of killing the process")

// A random life: events come in, persons are erased, events expire, merchants are deleted, the process is killed at any moment.
// Whenever everything has settled, listing, totals, summary, and the feed from where a reader was have exactly what is left, and no
// file has a byte of what was erased.
func TestDrillLife(t *testing.T) {
	testenv.Drill(t)
	if checks := flag.Lookup("rapid.checks"); checks.Value.String() == checks.DefValue {
		defer flag.Set("rapid.checks", checks.DefValue)
		testenv.Check(t, flag.Set("rapid.checks", "3"))
	}
	parent, cut, cuts := t.TempDir(), func(_, kill func()) { kill() }, 0
	if *lifeDisk != "" {
		d := newLossyDisk(t, *lifeDisk, testenv.Random(t))
		parent, cut = d.dir, d.cut
	}
	rapid.Check(t, func(r *rapid.T) {
		dir, err := os.MkdirTemp(parent, "life")
		testenv.Check(r, err)
		l := &lifeModel{t: r, dir: dir, cut: cut, now: day0, events: map[store.MerchantID][]lifeEvent{}, days: map[store.MerchantID]store.Retention{},
			persons: map[store.MerchantID]map[int]*lifePerson{}, read: map[store.MerchantID]store.Cursor{}, readUpTo: map[store.MerchantID]int{}}
		l.launch()
		defer func() { l.kill() }()
		l.merchants = l.do(lifeCommand{Op: "begin"}).Merchants
		for _, m := range l.merchants {
			l.persons[m] = map[int]*lifePerson{}
		}
		r.Repeat(map[string]func(*rapid.T){
			"record": func(r *rapid.T) { l.record() },
			"erase":  func(r *rapid.T) { l.erase() },
			"keep": func(r *rapid.T) { // only fewer days: those that are past may be gone already
				m := l.merchant()
				days := rapid.SampledFrom([]store.Retention{30, 20, 10, 5}).Draw(r, "days")
				if l.days[m] == 0 || days < l.days[m] {
					l.days[m] = days
					l.do(lifeCommand{Op: "keep", Merchant: m, Days: days})
				}
			},
			"delete": func(r *rapid.T) {
				if len(l.merchants) == 1 || rapid.IntRange(0, 3).Draw(r, "really") > 0 {
					return
				}
				m := l.merchant()
				l.do(lifeCommand{Op: "delete", Merchant: m})
				l.merchants = slices.DeleteFunc(l.merchants, func(other store.MerchantID) bool { return other == m })
				for visitor := range l.persons[m] {
					l.gone = append(l.gone, lifeWord(m, visitor), lifeMail(m, visitor), string(lifeMUID(m, visitor)))
				}
				delete(l.events, m)
				delete(l.persons, m)
			},
			"time passes": func(r *rapid.T) { l.now = l.now.Add(time.Duration(rapid.IntRange(1, 72).Draw(r, "hours")) * time.Hour) },
			"expire":      func(r *rapid.T) { l.do(lifeCommand{Op: "expire"}) },
			"kill": func(r *rapid.T) {
				time.Sleep(time.Duration(rapid.IntRange(0, 50).Draw(r, "ms")) * time.Millisecond)
				l.cut(func() {}, l.kill)
				cuts++
				for _, f := range withoutTags(closedFindings(t, l.dir)) {
					r.Errorf("after a kill: %+v", f)
				}
				l.launch()
				l.do(lifeCommand{Op: "open"})
			},
			"settle": func(r *rapid.T) { l.settle() },
		})
		l.settle()
	})
	t.Logf("%d kills or power cuts", cuts)
}
