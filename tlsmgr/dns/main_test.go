package dns

import (
	"flag"
	"os"
	"testing"
)

func TestMain(m *testing.M) {
	flag.Parse()
	flag.Set("test.parallel", "8") // most of a test's time is waiting
	os.Exit(m.Run())
}
