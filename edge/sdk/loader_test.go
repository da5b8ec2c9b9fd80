package sdk_test

import (
	"bytes"
	"compress/gzip"
	"testing"

	"mtagd/edge/sdk"
)

func TestLoaderIsSmall(t *testing.T) {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	if _, err := z.Write(sdk.Loader()); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	if b.Len() > 3<<10 {
		t.Errorf("%d bytes compressed, more than 3 KiB", b.Len())
	}
}
