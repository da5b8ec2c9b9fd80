package tag

import "github.com/prometheus/client_golang/prometheus"

// metrics holds each counter ready: to look up a label costs more than to count.
type metrics struct {
	events [outcomes]prometheus.Counter
}

// eventOutcome is what happened to an event.
type eventOutcome uint8

const (
	eventRecorded eventOutcome = iota
	eventDuplicate
	eventUnresolved
	eventRefused // the request was wrong
	eventFailed  // the engine returned an error
	outcomes
)

var outcomeNames = [outcomes]string{"recorded", "duplicate", "unresolved", "refused", "failed"}

func newMetrics(reg prometheus.Registerer) (*metrics, error) {
	events := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "mtagd_events_total",
		Help: "Events received, by outcome.",
	}, []string{"outcome"})
	if reg != nil {
		if err := reg.Register(events); err != nil {
			return nil, err
		}
	}
	m := new(metrics)
	for o, name := range outcomeNames {
		m.events[o] = events.WithLabelValues(name)
	}
	return m, nil
}
