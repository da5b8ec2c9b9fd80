package main

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/crypto/x509roots/fallback/bundle"
)

const nonroot = 65532 // as in Google's distroless images

// image writes a container image of all architectures as an OCI layout in a tar file, without Docker: a binary, the root
// certificates that Mozilla trusts, and a user. "docker load" takes the file, "skopeo copy oci-archive:FILE docker://…" pushes it.
func (r *release) image() error {
	blobs := map[string][]byte{}
	add := func(content []byte) map[string]any {
		digest := fmt.Sprintf("%x", sha256.Sum256(content))
		blobs["blobs/sha256/"+digest] = content
		return map[string]any{"digest": "sha256:" + digest, "size": len(content)}
	}
	tag := strings.ReplaceAll(r.version, "+", "-") // which tags cannot have
	var manifests, forDocker []any
	for _, architecture := range r.architectures {
		layer, err := r.layer(architecture)
		if err != nil {
			return err
		}
		packed := add(compress(layer))
		packed["mediaType"] = "application/vnd.oci.image.layer.v1.tar+gzip"
		config := add(toJSON(map[string]any{
			"architecture": architecture, "os": "linux", "created": r.time.Format(time.RFC3339),
			"rootfs":  map[string]any{"type": "layers", "diff_ids": []string{fmt.Sprintf("sha256:%x", sha256.Sum256(layer))}},
			"history": []any{map[string]any{"created": r.time.Format(time.RFC3339), "created_by": "make release"}},
			"config": map[string]any{
				"User": fmt.Sprintf("%d:%d", nonroot, nonroot), "Entrypoint": []string{"/usr/bin/mtagd"},
				"Env":          []string{"PATH=/usr/bin", "MTAGD_DATA=/data", "MTAGD_HTTP=:8080", "MTAGD_HTTPS=:8443"},
				"ExposedPorts": map[string]any{"8080/tcp": map[string]any{}, "8443/tcp": map[string]any{}},
				"Volumes":      map[string]any{"/data": map[string]any{}},
				"Healthcheck":  map[string]any{"Test": []string{"CMD", "/usr/bin/mtagd", "health"}, "StartPeriod": 2 * time.Minute},
				"Labels":       map[string]any{"org.opencontainers.image.version": r.version, "org.opencontainers.image.revision": r.commit},
			},
		}))
		config["mediaType"] = "application/vnd.oci.image.config.v1+json"
		manifest := add(toJSON(map[string]any{
			"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json", "config": config, "layers": []any{packed},
		}))
		manifest["mediaType"] = "application/vnd.oci.image.manifest.v1+json"
		manifest["platform"] = map[string]any{"architecture": architecture, "os": "linux"}
		manifests = append(manifests, manifest)
		path := func(blob map[string]any) string { return "blobs/sha256/" + blob["digest"].(string)[len("sha256:"):] }
		forDocker = append(forDocker, map[string]any{
			"Config": path(config), "Layers": []string{path(packed)}, "RepoTags": []string{fmt.Sprintf("mtagd:%s-%s", tag, architecture)},
		})
	}
	index := map[string]any{"schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json", "manifests": manifests}
	all := add(toJSON(index))
	all["mediaType"] = "application/vnd.oci.image.index.v1+json"
	all["annotations"] = map[string]any{"org.opencontainers.image.ref.name": tag}
	index["manifests"] = []any{all}

	archive := newArchive(r.time)
	archive.file("oci-layout", 0o644, []byte(`{"imageLayoutVersion":"1.0.0"}`))
	archive.file("index.json", 0o644, toJSON(index))
	archive.file("manifest.json", 0o644, toJSON(forDocker))
	for _, name := range slices.Sorted(maps.Keys(blobs)) {
		archive.file(name, 0o644, blobs[name])
	}
	return os.WriteFile(filepath.Join(r.out, fmt.Sprintf("mtagd-%s-image.tar", r.version)), archive.bytes(), 0o644)
}

// layer is the file system of the image.
func (r *release) layer(architecture string) ([]byte, error) {
	binary, err := os.ReadFile(r.binary(architecture))
	if err != nil {
		return nil, err
	}
	var roots bytes.Buffer
	for root := range bundle.Roots() {
		if root.Constraint == nil { // those that count only under a condition cannot be in a file
			if err := pem.Encode(&roots, &pem.Block{Type: "CERTIFICATE", Bytes: root.Certificate}); err != nil {
				return nil, err
			}
		}
	}
	archive := newArchive(r.time)
	for _, dir := range []string{"etc/", "etc/ssl/", "etc/ssl/certs/", "usr/", "usr/bin/"} {
		archive.add(tar.Header{Typeflag: tar.TypeDir, Name: dir, Mode: 0o755}, nil)
	}
	archive.add(tar.Header{Typeflag: tar.TypeDir, Name: "tmp/", Mode: 0o1777}, nil)
	archive.add(tar.Header{Typeflag: tar.TypeDir, Name: "data/", Mode: 0o700, Uid: nonroot, Gid: nonroot}, nil) // a new volume gets these
	archive.file("etc/passwd", 0o644, fmt.Appendf(nil, "root:x:0:0::/:/\nnonroot:x:%d:%[1]d::/data:/\n", nonroot))
	archive.file("etc/group", 0o644, fmt.Appendf(nil, "root:x:0:\nnonroot:x:%d:\n", nonroot))
	archive.file("etc/ssl/certs/ca-certificates.crt", 0o644, roots.Bytes())
	archive.file("usr/bin/mtagd", 0o755, binary)
	return archive.bytes(), nil
}

// archive is a tar file in which all files have the same time.
type archive struct {
	out  bytes.Buffer
	w    *tar.Writer
	time time.Time
}

func newArchive(time time.Time) *archive {
	a := &archive{time: time}
	a.w = tar.NewWriter(&a.out)
	return a
}

func (a *archive) file(name string, mode int64, content []byte) {
	a.add(tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: mode}, content)
}

func (a *archive) add(h tar.Header, content []byte) {
	h.Size, h.ModTime = int64(len(content)), a.time
	err := a.w.WriteHeader(&h)
	if err == nil {
		_, err = a.w.Write(content)
	}
	if err != nil {
		panic(err) // the names are short, and a buffer takes everything
	}
}

func (a *archive) bytes() []byte {
	if err := a.w.Close(); err != nil {
		panic(err)
	}
	return a.out.Bytes()
}

// toJSON returns what consists of maps, lists and strings: it cannot fail.
func toJSON(v any) []byte {
	text, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return text
}
