package certs

import (
	"context"
	"flag"
	"os"
	"testing"

	"mtagd/store/pgtest"
	"mtagd/store/postgres"
)

func TestMain(m *testing.M) {
	flag.Parse()
	flag.Set("test.parallel", "8") // more than there are processors: the tests mostly wait
	os.Exit(pgtest.Main(m, func(url string) error {
		engine, err := postgres.Open(context.Background(), url, postgres.Options{})
		if err != nil {
			return err
		}
		return engine.Close()
	}))
}
