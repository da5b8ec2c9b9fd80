package postgres

import (
	"context"
	"io"
	"log/slog"
	"os"
	"testing"

	"mtagd/store/postgres/pgtest"
)

var quiet = slog.New(slog.NewTextHandler(io.Discard, nil))

func TestMain(m *testing.M) {
	os.Exit(pgtest.Main(m, func(url string) error {
		e, err := openURL(url, Options{Log: quiet})
		if err != nil {
			return err
		}
		return e.Close()
	}))
}

func openURL(url string, opt Options) (*engine, error) {
	config, err := parseURL(url)
	if err != nil {
		return nil, err
	}
	return open(context.Background(), config, opt)
}
