package limit

import (
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"mtagd/store"
)

// buffer is written by timers and read by the test.
type buffer struct {
	mu   sync.Mutex
	text strings.Builder
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

// take returns what was written since its last call.
func (b *buffer) take() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	defer b.text.Reset()
	return b.text.String()
}

// logOf returns Refusals and a function that returns the lines logged since its last call, without time and level.
func logOf(t *testing.T, reg prometheus.Registerer) (*Refusals, func() string) {
	t.Helper()
	var log buffer
	r := NewRefusals(slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{
		ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey || a.Key == slog.LevelKey {
				return slog.Attr{}
			}
			return a
		},
	})), reg)
	return r, func() string {
		synctest.Wait()
		return log.take()
	}
}

func expect(t *testing.T, what, got, want string) {
	t.Helper()
	if got != want {
		t.Errorf("%s: logged %q, want %q", what, got, want)
	}
}

func TestRefusalsAreLoggedOnceAMinutePerCause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, log := logOf(t, nil)
		r.Count(MerchantEvents, Merchant("m-1"))
		expect(t, "the first refusal", log(), "msg=refused cause=merchant_events count=1 merchant=m-1 of_this_merchant=1\n")
		for range 10 {
			r.Count(MerchantEvents, Merchant("m-1"))
		}
		for range 20 {
			r.Count(MerchantEvents, Merchant("m-2"))
		}
		expect(t, "further ones", log(), "")
		r.Count(PartnerWrites, Partner("p-1"))
		expect(t, "another cause", log(), "msg=refused cause=partner_writes count=1 partner=p-1 of_this_partner=1\n")
		time.Sleep(logInterval)
		expect(t, "after a minute", log(), "msg=refused cause=merchant_events count=30 merchant=m-2 of_this_merchant=20\n")
		time.Sleep(2 * logInterval)
		expect(t, "without refusals", log(), "")
		r.Count(MerchantEvents, Merchant("m-1"))
		expect(t, "the next one", log(), "msg=refused cause=merchant_events count=1 merchant=m-1 of_this_merchant=1\n")
		r.Count(MerchantEvents, Merchant("m-3"))
		r.Flush()
		expect(t, "at the end", log(), "msg=refused cause=merchant_events count=1 merchant=m-3 of_this_merchant=1\n")
	})
}

func TestAReasonIsLogged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, log := logOf(t, nil)
		r.CountReason(Unavailable, Tenant{}, "the disk is full")
		expect(t, "a refusal with a reason", log(), "msg=refused cause=unavailable count=1 reason=\"the disk is full\"\n")
	})
}

// The metric has no ids: its cardinality is bounded.
func TestRefusalsAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reg := prometheus.NewRegistry()
		r, _ := logOf(t, reg)
		var callers sync.WaitGroup
		for range 4 {
			callers.Go(func() {
				for range 3000 {
					r.Count(MerchantEvents, Merchant(store.NewMerchantID()))
				}
			})
		}
		callers.Wait()
		r.Count(UnknownHost, Tenant{})
		families, err := reg.Gather()
		if err != nil || len(families) != 1 || len(families[0].GetMetric()) != int(causes)*int(tenantClasses) {
			t.Fatalf("%v, %v", families, err)
		}
		for _, m := range families[0].GetMetric() {
			want := 0.0
			switch series := m.GetLabel()[0].GetValue() + " " + m.GetLabel()[1].GetValue(); series {
			case "merchant_events merchant":
				want = 12_000
			case "unknown_host none":
				want = 1
			}
			if got := m.GetCounter().GetValue(); got != want {
				t.Errorf("%v: %v, want %v", m.GetLabel(), got, want)
			}
		}
		if got := len(r.windows[MerchantEvents].tenants); got > maxTenants {
			t.Errorf("the window has %d tenants, want at most %d", got, maxTenants)
		}
	})
}

func TestEveryCauseHasItsOwnName(t *testing.T) {
	seen := map[string]bool{}
	for c := range causes {
		if name := c.String(); name == "" || seen[name] {
			t.Errorf("cause %d is called %q", c, name)
		} else {
			seen[name] = true
		}
	}
}

func TestNilRefusalsCountNothing(t *testing.T) {
	var r *Refusals
	r.Count(AddressEvents, Tenant{})
}
