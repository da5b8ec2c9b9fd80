package tag

import "github.com/prometheus/client_golang/prometheus"

// metrics has every counter, looked up once by its label: a look-up costs more than the increment.
type metrics struct {
	events [outcomes]prometheus.Counter
}

// eventOutcome is what became of an event, the label of the event counter.
type eventOutcome uint8

const (
	eventRecorded eventOutcome = iota
	eventDuplicate
	eventUnresolved
	eventSuppressed // the person was erased, and later events are refused
	eventRefused    // the event is wrong; a batch that is refused as a whole counts as one
	eventFailed     // the engine returned an error
	outcomes
)

var outcomeNames = [outcomes]string{"recorded", "duplicate", "unresolved", "suppressed", "refused", "failed"}

func newMetrics(reg prometheus.Registerer) (*metrics, error) {
	events := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "mtagd_events_total",
		Help: "Events received, by outcome: recorded, duplicate, unresolved (no muid found), suppressed (the person was erased), refused, failed. A batch that is refused as a whole counts as one.",
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
