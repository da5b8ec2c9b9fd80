package sdk_test

import (
	"bytes"
	"compress/gzip"
	"testing"

	"github.com/evanw/esbuild/pkg/api"

	"mtagd/edge/sdk"
)

func TestTheLoaderIsSmall(t *testing.T) {
	if size := compressedSize(t, sdk.Versions()[0].Loader); size > 3300 {
		t.Errorf("%d bytes compressed, more than 3300", size)
	}
}

// compressedSize returns the size of a script as gzip -9 compresses it, in bytes.
func compressedSize(t *testing.T, script []byte) int {
	t.Helper()
	var b bytes.Buffer
	z, err := gzip.NewWriterLevel(&b, gzip.BestCompression)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := z.Write(script); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	t.Logf("%d bytes, %d compressed", len(script), b.Len())
	return b.Len()
}

// For ES2019, esbuild rewrites all newer syntax: a script that it leaves unchanged has none.
func TestTheScriptsAreES2019(t *testing.T) {
	print := func(script string, target api.Target) string {
		r := api.Transform(script, api.TransformOptions{Target: target})
		if len(r.Errors) > 0 {
			t.Fatalf("%+v", r.Errors)
		}
		return string(r.Code)
	}
	scripts := []sdk.Extra{{Name: "the loader", Script: sdk.Versions()[0].Loader}}
	for _, s := range append(scripts, sdk.Versions()[0].Extras...) {
		if source := string(s.Script); print(source, api.ES2019) != print(source, api.ESNext) {
			t.Errorf("%s has syntax that is newer than ES2019", s.Name)
		}
	}
	const newer = "a?.b"
	if print(newer, api.ES2019) == print(newer, api.ESNext) {
		t.Error("this test would not find newer syntax")
	}
}
