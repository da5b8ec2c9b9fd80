package postgres

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"testing"
	"time"

	"mtagd/store"
	"mtagd/store/pgtest"
)

var quiet = slog.New(slog.NewTextHandler(io.Discard, nil))

func TestMain(m *testing.M) {
	code := pgtest.Main(m, func(url string) error {
		e, err := openURL(url, Options{Log: quiet})
		if err != nil {
			return err
		}
		return e.Close()
	})
	for _, err := range sent.check() {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// openSoon is openURL. It tries again for a minute, because a database on a busy machine may answer too late once.
func openSoon(url string, opt Options) (e *engine, err error) {
	for deadline := time.Now().Add(time.Minute); ; {
		if e, err = openURL(url, opt); store.KindOf(err) != store.KindUnavailable || time.Now().After(deadline) {
			return e, err
		}
	}
}

func openURL(url string, opt Options) (*engine, error) {
	opt.tracer = sent
	return openEngine(context.Background(), url, opt)
}
