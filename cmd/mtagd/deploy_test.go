package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
)

// The image's health check runs a command that the image's program has.
func TestDockerfileHealthCheck(t *testing.T) {
	dockerfile, err := os.ReadFile("../../deploy/Dockerfile")
	if err != nil {
		t.Fatal(err)
	}
	find := func(pattern string) (command []string) {
		t.Helper()
		match := regexp.MustCompile(pattern).FindSubmatch(dockerfile)
		if match == nil {
			t.Fatalf("the Dockerfile has no %s", pattern)
		}
		if err := json.Unmarshal(match[1], &command); err != nil {
			t.Fatal(err)
		}
		return command
	}
	program, check := find(`(?m)^ENTRYPOINT (\[.*\])$`), find(`(?m)^HEALTHCHECK .*CMD (\[.*\])$`)
	if check[0] != program[0] {
		t.Errorf("the image runs %s, its health check %s", program[0], check[0])
	}
	out, err := exec.Command("mtagd", append(check[1:], "--admin", "off")...).CombinedOutput()
	if !strings.Contains(string(out), "the health is unknown") {
		t.Errorf("%v: %s", err, out)
	}
}

// The example configuration is valid, even with all its optional lines. So the only error is the wrong --https, which
// keeps the service from starting.
func TestExampleConfiguration(t *testing.T) {
	example, err := os.ReadFile("../../deploy/mtagd.yaml")
	if err != nil {
		t.Fatal(err)
	}
	file := t.TempDir() + "/mtagd.yaml"
	all := regexp.MustCompile(`(?m)^# ([a-z-]+: [\["t])`).ReplaceAll(example, []byte("$1"))
	if string(all) == string(example) {
		t.Error("the example has no optional lines")
	}
	if err := os.WriteFile(file, all, 0o600); err != nil {
		t.Fatal(err)
	}
	out, _ := exec.Command("mtagd", "serve", "--config", file, "--https", "none").CombinedOutput()
	const want = "mtagd: --https: must be an address such as :8080 or 127.0.0.1:8080, not \"none\"\n"
	if string(out) != want {
		t.Errorf("printed %s, want %s", out, want)
	}
}
