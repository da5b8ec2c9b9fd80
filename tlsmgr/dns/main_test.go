package dns

import (
	"flag"
	"os"
	"testing"
)

func TestMain(m *testing.M) {
	flag.Parse()
	flag.Set("test.parallel", "8") // more than there are processors: the tests mostly wait
	os.Exit(m.Run())
}
