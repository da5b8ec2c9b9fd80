package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"mtagd/store/pgtest"
)

// fault is something that fails, and that is mended before make returns.
type fault struct {
	name  string
	quick bool // it is part of the short test
	make  func(ctx context.Context, c *chaos, random *rand.Rand) error
}

// short and long are how long a fault lasts. All time-outs of the service are between them.
const (
	short = 1500 * time.Millisecond
	long  = 25 * time.Second
)

var faults = []fault{
	{"the primary is killed, a standby promoted", true, func(ctx context.Context, c *chaos, random *rand.Rand) error {
		old := c.cluster.primary
		if err := crash(c.cluster.servers[old]); err != nil {
			return err
		}
		wait(draw(random, short))
		return c.failOver(ctx, "promotion", nil)
	}},
	{"the primary is killed and starts again", true, func(_ context.Context, c *chaos, random *rand.Rand) error {
		defer c.noteLoss(time.Now())
		s := c.primary()
		if err := crash(s); err != nil {
			return err
		}
		wait(draw(random, short))
		return s.Start()
	}},
	{"the primary ends all connections", false, func(_ context.Context, c *chaos, _ *rand.Rand) error {
		return pgtest.EndConnections(c.primary().URL("postgres"))
	}},
	{"the disk of the primary is full", true, func(ctx context.Context, c *chaos, random *rand.Rand) error {
		free, err := c.cluster.fillDisk(ctx)
		if errors.Is(err, errNoDisk) {
			c.Log("left out: ", err)
			return nil
		}
		if err != nil {
			return err
		}
		wait(draw(random, 2*short))
		return free()
	}},
	{"the primary stops for a moment", false, func(_ context.Context, c *chaos, random *rand.Rand) error {
		return c.stopPrimary(draw(random, short))
	}},
	{"the primary stops for longer than any time-out", false, func(_ context.Context, c *chaos, _ *rand.Rand) error {
		return c.stopPrimary(long)
	}},
	{"the primary stops, a standby is promoted, the old primary goes on", true, func(ctx context.Context, c *chaos, random *rand.Rand) error {
		thaw, err := c.primary().Freeze()
		if err != nil {
			return err
		}
		wait(draw(random, short))
		return c.failOver(ctx, "promotion beside a stopped primary", thaw)
	}},
	{"the primary loses its standbys, one is promoted, and the old primary still answers", true, func(ctx context.Context, c *chaos, random *rand.Rand) error {
		for _, i := range c.cluster.standbys() {
			l, err := c.cluster.link(c.cluster.servers[i].Name, c.cluster.primary)
			if err != nil {
				return err
			}
			l.set(linkSilent)
		}
		wait(draw(random, short))
		return c.failOver(ctx, "promotion beside a fenced primary", nil)
	}},
	{"a standby is killed", false, func(_ context.Context, c *chaos, random *rand.Rand) error {
		standbys := c.cluster.standbys()
		return c.killServers(draw(random, short), standbys[random.IntN(len(standbys))])
	}},
	{"both standbys are killed", true, func(_ context.Context, c *chaos, random *rand.Rand) error {
		return c.killServers(draw(random, short), c.cluster.standbys()...)
	}},
	{"both standbys are away for longer than any time-out", false, func(_ context.Context, c *chaos, _ *rand.Rand) error {
		return c.killServers(long, c.cluster.standbys()...)
	}},
	{"a standby stops", false, func(_ context.Context, c *chaos, random *rand.Rand) error {
		standbys := c.cluster.standbys()
		thaw, err := c.cluster.servers[standbys[random.IntN(len(standbys))]].Freeze()
		if err != nil {
			return err
		}
		wait(draw(random, 2*short))
		return thaw()
	}},
	{"a node is killed", true, func(_ context.Context, c *chaos, random *rand.Rand) error {
		n := c.node[random.IntN(2)]
		if err := n.running.Load().kill(); err != nil {
			return err
		}
		c.start(n)
		return nil
	}},
	{"a node stops for a moment", false, func(_ context.Context, c *chaos, random *rand.Rand) error {
		return c.stopNode(c.node[random.IntN(2)], draw(random, short))
	}},
	{"a node stops for longer than any time-out", false, func(_ context.Context, c *chaos, random *rand.Rand) error {
		return c.stopNode(c.node[random.IntN(2)], long)
	}},
	{"a node and the primary are cut off from each other", false, func(_ context.Context, c *chaos, random *rand.Rand) error {
		return c.cutNode(random, linkCut, draw(random, short))
	}},
	{"a node and the primary hear nothing of each other", false, func(_ context.Context, c *chaos, random *rand.Rand) error {
		return c.cutNode(random, linkSilent, draw(random, 2*short))
	}},
	{"a node hears nothing of the primary", true, func(_ context.Context, c *chaos, random *rand.Rand) error {
		return c.cutNode(random, linkToServer, draw(random, 2*short))
	}},
	{"the primary hears nothing of a node", false, func(_ context.Context, c *chaos, random *rand.Rand) error {
		return c.cutNode(random, linkFromServer, draw(random, 2*short))
	}},
	{"a node and the primary hear nothing of each other for longer than any time-out", false, func(_ context.Context, c *chaos, random *rand.Rand) error {
		return c.cutNode(random, linkSilent, long)
	}},
	{"the primary and its standbys hear nothing of each other", false, func(_ context.Context, c *chaos, random *rand.Rand) error {
		return c.cutStandbys(linkSilent, draw(random, 2*short))
	}},
	{"the standbys hear nothing of the primary", false, func(_ context.Context, c *chaos, random *rand.Rand) error {
		return c.cutStandbys(linkToServer, draw(random, 2*short))
	}},
	{"the primary hears nothing of the standbys", false, func(_ context.Context, c *chaos, random *rand.Rand) error {
		return c.cutStandbys(linkFromServer, draw(random, 2*short))
	}},
}

func draw(random *rand.Rand, below time.Duration) time.Duration {
	return time.Duration(random.Int64N(int64(below)))
}

// wait is how long a fault lasts.
func wait(d time.Duration) { time.Sleep(d) }

func (c *chaos) primary() *pgtest.Server { return c.cluster.servers[c.cluster.primary] }

// failOver promotes a standby, and makes the old primary a standby. Before that, thaw lets the old primary go on, unless
// thaw is nil.
func (c *chaos) failOver(ctx context.Context, what string, thaw func() error) error {
	defer c.noteLoss(time.Now())
	old := c.cluster.primary
	if err := c.cluster.promote(ctx); err != nil {
		return err
	}
	c.awaitService(what, time.Now())
	if thaw != nil {
		if err := thaw(); err != nil {
			return err
		}
		wait(short)
	}
	return c.cluster.rejoin(old)
}

// noteLoss notes that from a time on until now a primary may have lost events that no standby had.
func (c *chaos) noteLoss(from time.Time) { c.losses = append(c.losses, span{from, time.Now()}) }

func (c *chaos) stopPrimary(d time.Duration) error {
	thaw, err := c.primary().Freeze()
	if err != nil {
		return err
	}
	wait(d)
	return thaw()
}

func (c *chaos) stopNode(n *chaosNode, d time.Duration) error {
	n.stopped.Add(1)
	thaw, err := freezeProcess(n.running.Load().cmd.Process)
	if err != nil {
		return err
	}
	wait(d)
	err = thaw()
	n.stopped.Add(1)
	return err
}

func (c *chaos) killServers(d time.Duration, servers ...int) error {
	for _, i := range servers {
		if err := crash(c.cluster.servers[i]); err != nil {
			return err
		}
	}
	wait(d)
	var errs []error
	for _, i := range servers {
		errs = append(errs, c.cluster.servers[i].Start())
	}
	return errors.Join(errs...)
}

func (c *chaos) cutNode(random *rand.Rand, state linkState, d time.Duration) error {
	n := c.node[random.IntN(2)]
	l, err := c.cluster.link(n.name, c.cluster.primary)
	if err != nil {
		return err
	}
	l.set(state)
	wait(d)
	l.set(linkOpen)
	return nil
}

func (c *chaos) cutStandbys(state linkState, d time.Duration) error {
	var links []*link
	for _, i := range c.cluster.standbys() {
		l, err := c.cluster.link(c.cluster.servers[i].Name, c.cluster.primary)
		if err != nil {
			return err
		}
		links = append(links, l)
		l.set(state)
	}
	wait(d)
	for _, l := range links {
		l.set(linkOpen)
	}
	return nil
}

// summarize logs what was done, and what the nodes did meanwhile.
func (c *chaos) summarize(took time.Duration) {
	for name, n := range c.faults {
		c.Logf("%3d × %s", n, name)
	}
	for after, times := range c.outages {
		most, sum := time.Duration(0), time.Duration(0)
		for _, d := range times {
			most, sum = max(most, d), sum+d
		}
		c.Logf("both nodes recorded %v after %s (mean of %d; at most %v)", (sum / time.Duration(len(times))).Round(time.Millisecond), after,
			len(times), most.Round(time.Millisecond))
	}
	c.Logf("seed %d, %v: %s, %d operations on claims and event_ids, %d erasures", c.seed, took.Round(time.Second), c.sent.String(), len(c.ops), len(c.persons.erasures))
}

func (s *sent) String() string {
	counts := map[outcome]int{}
	for _, o := range s.events {
		counts[o]++
	}
	return fmt.Sprintf("%d events acknowledged, %d refused, %d unknown", counts[isRecorded], counts[isRefused], counts[isUnknown])
}
