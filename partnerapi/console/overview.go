package console

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/valyala/fasthttp"

	"mtagd/partnerapi"
)

// System is what is known of the process that runs the service. It is cheap enough to get for each request.
type System struct {
	Version  string    `json:"version"`
	Started  time.Time `json:"startedAt"`
	NotReady error     `json:"-"` // why events are refused; nil: they are accepted
	Disk     Disks     `json:"disk"`
	Rates    Rates     `json:"-"`
	Backup   *Backup   `json:"-"` // nil: none are scheduled
}

// Disks is the space of the data directory.
type Disks struct {
	Reserve uint64 `json:"reserveBytes"` // free bytes below which events are refused
	Parts   []Disk `json:"parts"`
}

// Disk is the space of one part of the data directory, in bytes. Free and Total are those of its disk.
type Disk struct {
	Part  string `json:"part"`
	Free  uint64 `json:"freeBytes"`
	Total uint64 `json:"totalBytes"`
	Used  uint64 `json:"usedBytes"`
}

// Rates are what the service has received in the last minutes.
type Rates struct {
	Over    time.Duration     // how many minutes these are; fewer after the start
	Events  uint64            // that were recorded
	Refused map[string]uint64 // requests and connections, by cause
}

// Backup is the state of the scheduled backups.
type Backup struct {
	Every    time.Duration `json:"-"`
	Last     time.Time     `json:"lastSuccessAt"`       // when the last one that succeeded began; zero: there is none
	Failed   time.Time     `json:"lastFailureAt"`       // when the last one that failed began; zero: none has since the start
	Error    string        `json:"lastError,omitempty"` // why it has failed; empty once one has succeeded after it
	Failures uint64        `json:"failures"`            // since the start
}

// forOperators returns a handler that only operators reach.
func (c *Console) forOperators(handle func(*fasthttp.RequestCtx) error) func(*fasthttp.RequestCtx) error {
	return func(r *fasthttp.RequestCtx) error {
		s, _, err := c.authorize(r, true)
		if err != nil {
			return err
		}
		partnerapi.SetPartner(r, caller(s))
		return handle(r)
	}
}

type overviewJSON struct {
	System
	Now       time.Time `json:"now"`
	Uptime    int64     `json:"uptimeSeconds"`
	Ready     bool      `json:"ready"`
	NotReady  string    `json:"notReady,omitempty"` // why not
	Partners  partners  `json:"partners"`
	Suspended struct {
		Total int             `json:"total"`
		Items []suspendedJSON `json:"items"`
	} `json:"suspended"`
	Hosts   hostsJSON   `json:"hosts"`
	Rates   ratesJSON   `json:"rates"`
	Backups *backupJSON `json:"backups"`
}

type ratesJSON struct {
	Seconds          int64       `json:"seconds"` // that the figures are of
	Events           uint64      `json:"events"`
	EventsPerSecond  float64     `json:"eventsPerSecond"`
	Refused          uint64      `json:"refused"`
	RefusedPerSecond float64     `json:"refusedPerSecond"`
	Causes           []causeJSON `json:"causes"` // of what was refused, the most frequent first
}

type causeJSON struct {
	Cause string `json:"cause"`
	Count uint64 `json:"count"`
}

type backupJSON struct {
	Backup
	Interval int64  `json:"intervalSeconds"`
	Age      *int64 `json:"ageSeconds"` // null: none has succeeded
}

// overviewTimeout bounds the time in which the tenants' figures are read. They are read once a minute.
const overviewTimeout = 10 * time.Second

// overview answers with what an operator should know of the service.
func (c *Console) overview(r *fasthttp.RequestCtx) error {
	ctx, cancel := context.WithTimeout(context.Background(), overviewTimeout)
	defer cancel()
	now, system := c.Now(), c.System()
	list, err := c.Engine.Partners(ctx)
	if err != nil {
		return err
	}
	view := overviewJSON{
		System: system, Now: now, Uptime: int64(now.Sub(system.Started) / time.Second), Ready: system.NotReady == nil,
		Rates: viewRates(system.Rates), Backups: viewBackup(system.Backup, now),
	}
	view.Hosts, _, _ = c.hostList.get(now, hostsAge, func() (hostsJSON, error) { return c.listHosts(now), nil }) // it cannot fail
	if system.NotReady != nil {
		view.NotReady = system.NotReady.Error()
	}
	if view.Partners, err = c.viewPartners(ctx, list, now); err != nil {
		return err
	}
	if view.Suspended.Items, view.Suspended.Total, err = c.suspended(ctx); err != nil {
		return err
	}
	return partnerapi.Reply(r, fasthttp.StatusOK, view)
}

func viewRates(rates Rates) ratesJSON {
	view := ratesJSON{Seconds: int64(rates.Over / time.Second), Events: rates.Events, Causes: []causeJSON{}}
	for cause, n := range rates.Refused {
		if n > 0 {
			view.Refused += n
			view.Causes = append(view.Causes, causeJSON{cause, n})
		}
	}
	slices.SortFunc(view.Causes, func(a, b causeJSON) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), cmp.Compare(a.Cause, b.Cause))
	})
	if seconds := rates.Over.Seconds(); seconds > 0 {
		view.EventsPerSecond = float64(view.Events) / seconds
		view.RefusedPerSecond = float64(view.Refused) / seconds
	}
	return view
}

func viewBackup(b *Backup, now time.Time) *backupJSON {
	if b == nil {
		return nil
	}
	view := &backupJSON{Backup: *b, Interval: int64(b.Every / time.Second)}
	if !b.Last.IsZero() {
		view.Age = new(int64(now.Sub(b.Last) / time.Second))
	}
	return view
}
