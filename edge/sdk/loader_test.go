package sdk_test

import (
	"bytes"
	"compress/gzip"
	"testing"

	"github.com/evanw/esbuild/pkg/api"

	"mtagd/edge/sdk"
)

func TestTheLoaderIsSmall(t *testing.T) {
	var b bytes.Buffer
	z, err := gzip.NewWriterLevel(&b, gzip.BestCompression)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := z.Write(sdk.Loader()); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	t.Logf("%d bytes, %d compressed", len(sdk.Loader()), b.Len())
	const most = 3481 // 3.4 KiB
	if b.Len() > most {
		t.Errorf("%d bytes compressed, more than %d", b.Len(), most)
	}
}

// For ES2017, esbuild rewrites all newer syntax: a loader that it leaves unchanged has none.
func TestTheLoaderIsES2017(t *testing.T) {
	print := func(script string, target api.Target) string {
		r := api.Transform(script, api.TransformOptions{Target: target})
		if len(r.Errors) > 0 {
			t.Fatalf("%+v", r.Errors)
		}
		return string(r.Code)
	}
	loader := string(sdk.Loader())
	if print(loader, api.ES2017) != print(loader, api.ESNext) {
		t.Error("the loader has syntax that is newer than ES2017")
	}
	const newer = "a?.b"
	if print(newer, api.ES2017) == print(newer, api.ESNext) {
		t.Error("this test would not find newer syntax")
	}
}
