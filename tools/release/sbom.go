package main

import (
	"debug/buildinfo"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// sbom writes what the binary is made of, as it says itself, in CycloneDX 1.6.
func (r *release) sbom() error {
	info, err := buildinfo.ReadFile(r.binary(r.architectures[0]))
	if err != nil {
		return err
	}
	type component struct {
		Type    string `json:"type"`
		Name    string `json:"name"`
		Version string `json:"version"`
		PURL    string `json:"purl,omitempty"`
	}
	components := []component{{"library", "std", info.GoVersion[len("go"):], "pkg:golang/std@" + info.GoVersion[len("go"):]}}
	for _, m := range info.Deps {
		if m.Replace != nil {
			m = m.Replace
		}
		components = append(components, component{"library", m.Path, m.Version, fmt.Sprintf("pkg:golang/%s@%s", m.Path, m.Version)})
	}
	text, err := json.MarshalIndent(map[string]any{
		"bomFormat": "CycloneDX", "specVersion": "1.6", "version": 1,
		"metadata":   map[string]any{"timestamp": r.time.Format(time.RFC3339), "component": component{"application", "mtagd", r.version, ""}},
		"components": components,
	}, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(r.out, fmt.Sprintf("mtagd-%s.cdx.json", r.version)), append(text, '\n'), 0o644)
}
