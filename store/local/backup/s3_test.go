package backup

import (
	"errors"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"

	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"
	"golang.org/x/sys/unix"

	"mtagd/store/testenv"
)

// A directory and a bucket answer the same.
func TestDestinations(t *testing.T) {
	backend := s3mem.New()
	testenv.Check(t, backend.CreateBucket("shop"))
	server := httptest.NewServer(gofakes3.New(backend).Server())
	defer server.Close()
	t.Setenv("AWS_ACCESS_KEY_ID", "id")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "secret")
	t.Setenv("AWS_REGION", "us-east-1")
	for _, name := range []string{t.TempDir(), "s3+http://" + strings.TrimPrefix(server.URL, "http://") + "/shop/some/prefix/"} {
		d, err := Open(name, false)
		testenv.Check(t, err)
		if found, err := d.List(t.Context(), "data/points/"); err != nil || len(found) > 0 {
			t.Errorf("%s: an empty one has %v, %v", d, found, err)
		}
		unlock, err := d.Lock(t.Context(), "data")
		testenv.Check(t, err)
		for _, object := range []string{"data/objects/p/000002", "data/points/p.json", "data/objects/p/000001"} {
			if err := d.Put(t.Context(), object, []byte("of "+object)); err != nil {
				t.Errorf("%s: %v", d, err)
			}
		}
		found, err := d.List(t.Context(), "data/objects/")
		if want := []Stored{{"data/objects/p/000001", 24}, {"data/objects/p/000002", 24}}; err != nil || !reflect.DeepEqual(found, want) {
			t.Errorf("%s: List gives %v, %v; want %v", d, found, err, want)
		}
		if content, err := d.Get(t.Context(), "data/objects/p/000002", 100); err != nil || string(content) != "of data/objects/p/000002" {
			t.Errorf("%s: Get gives %q, %v", d, content, err)
		}
		if content, err := d.Get(t.Context(), "data/objects/p/000002", 4); err != nil || string(content) != "of d" {
			t.Errorf("%s: Get of 4 bytes gives %q, %v", d, content, err)
		}
		for range 2 { // deleting it again is no error
			if err := d.Delete(t.Context(), "data/objects/p/000002"); err != nil {
				t.Errorf("%s: %v", d, err)
			}
		}
		if _, err := d.Get(t.Context(), "data/objects/p/000002", 100); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: Get of a deleted object gives %v", d, err)
		}
		if err := unlock(); err != nil {
			t.Error(err)
		}
	}
}

// What something else answers, such as the page of a proxy, is neither success nor an empty bucket.
func TestAnotherServerIsNoBucket(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPut {
			http.Redirect(w, r, "/login", http.StatusFound)
			return
		}
		_, _ = io.WriteString(w, "<html><body>Sign in</body></html>")
	}))
	defer server.Close()
	t.Setenv("AWS_ACCESS_KEY_ID", "id")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "secret")
	d, err := Open("s3+"+server.URL+"/shop", false)
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Put(t.Context(), "data/x", []byte("x")); err == nil {
		t.Error("it took an object")
	}
	if found, err := d.List(t.Context(), "data/"); err == nil {
		t.Errorf("it has %v", found)
	}
}

// Secrets do not belong into the name of a destination, which is logged.
func TestDestinationNames(t *testing.T) {
	for _, name := range []string{"", "s3://", "s3://host", "s3://host/", "s3://key:secret@host/bucket", "http://host/bucket"} {
		if d, err := Open(name, true); err == nil {
			t.Errorf("%q is %v", name, d)
		}
	}
}

// A directory that is missing is created only when it may be, and only itself.
func TestAMissingDirectory(t *testing.T) {
	for _, c := range []struct {
		name   string
		create bool
		ok     bool
	}{{"/new", true, true}, {"/new2", false, false}, {"/a/b", true, false}} {
		d, err := Open(t.TempDir()+c.name, c.create)
		testenv.Check(t, err)
		if err := d.Put(t.Context(), "data/x", nil); (err == nil) != c.ok {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

// A named pipe in a destination is an error: nobody waits for its writer.
func TestANamedPipeIsRefused(t *testing.T) {
	d := directory{path: t.TempDir()}
	testenv.Check(t, unix.Mkfifo(d.file("pipe"), 0o600))
	if _, err := d.Get(t.Context(), "pipe", 100); err == nil || !strings.Contains(err.Error(), "not a regular file") {
		t.Errorf("Get gives %v", err)
	}
}
