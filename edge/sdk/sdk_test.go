package sdk

import (
	"bytes"
	"compress/gzip"
	"os/exec"
	"testing"
)

func TestLoaderIsSmall(t *testing.T) {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	if _, err := z.Write(Loader()); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	if b.Len() > 3<<10 {
		t.Errorf("%d bytes compressed, more than 3 KiB", b.Len())
	}
}

// TestLoader runs the sentences of testdata/page.js.
func TestLoader(t *testing.T) {
	node, err := exec.LookPath("node")
	if err != nil {
		t.Skip("node is not installed")
	}
	if out, err := exec.CommandContext(t.Context(), node, "testdata/page.js", "loader.js").CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}
