package edge

import (
	"errors"
	"os"
	"time"
)

// The slowest transfer that the server waits for. A deadline that has passed is moved by rateInterval if at least
// rateBytes were transferred since it was set or moved. So the first 16 KiB of a request have readTimeout, and each
// further 16 KiB have 5 seconds: a phone on a bad network sends a large event of 20 KB within 15 seconds, at 11 kbit/s.
const (
	rateInterval = 5 * time.Second
	rateBytes    = 16 << 10
)

// deadline is a deadline that is armed lazily. fasthttp sets three deadlines for each request, and arming one costs as
// much as parsing a small event. Nearly every deadline is later than the one before, so that one stays armed. When it
// passes, the wanted deadline is armed. Only an earlier deadline is armed immediately. A deadline is not safe for
// concurrent use: it belongs to the goroutine that reads, or to the one that writes.
type deadline struct{ wanted, armed time.Time }

func (d *deadline) set(t time.Time, arm func(time.Time) error) error {
	d.wanted = t
	if !t.IsZero() && !d.armed.IsZero() && !t.Before(d.armed) {
		return nil
	}
	d.armed = t
	return arm(t)
}

// passed reports whether an error of a read or write is final. It is not when only the armed deadline has passed, or
// when the wanted one has passed too but the transfer is fast enough: then it moves by interval. passed arms the next
// deadline and returns false: the caller tries again.
func (d *deadline) passed(err error, arm func(time.Time) error, fastEnough func() bool, interval time.Duration) bool {
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		return true
	}
	if now := time.Now(); d.wanted.Equal(d.armed) || !now.Before(d.wanted) {
		if !fastEnough() {
			return true
		}
		d.wanted = now.Add(interval)
	}
	d.armed = d.wanted
	return arm(d.wanted) != nil
}
