package main

import (
	"bytes"
	"maps"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// object is a mapping of a YAML file.
type object = map[string]any

// at follows keys and indexes, such as "spec.containers.0.name". It fails where one is missing.
func at[T any](t *testing.T, in any, path string) T {
	t.Helper()
	for step := range strings.SplitSeq(path, ".") {
		switch v := in.(type) {
		case object:
			in = v[step]
		case []any:
			if i, err := strconv.Atoi(step); err == nil && i < len(v) {
				in = v[i]
				continue
			}
			in = nil
		default:
			in = nil
		}
	}
	value, ok := in.(T)
	if !ok {
		t.Fatalf("%s is %v", path, in)
	}
	return value
}

// kubernetes returns the objects of deploy/kubernetes by kind. Those that kustomization.yaml leaves out are named there in
// a comment.
func kubernetes(t *testing.T) map[string]object {
	t.Helper()
	files, err := filepath.Glob("../../deploy/kubernetes/*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	kustomization := readDeploy(t, "kubernetes/kustomization.yaml")
	objects := map[string]object{}
	for _, file := range files {
		name := filepath.Base(file)
		var o object
		readYAML(t, "kubernetes/"+name, &o)
		objects[at[string](t, o, "kind")] = o
		if name != "kustomization.yaml" && !strings.Contains(kustomization, "- "+name+"\n") {
			t.Errorf("kustomization.yaml does not name %s", name)
		}
	}
	return objects
}

// checkServe checks that "mtagd serve" accepts the environment. The wrong log format keeps it from starting.
func checkServe(t *testing.T, environment map[string]string) {
	t.Helper()
	cmd := exec.Command("mtagd", "serve", "--log-format", "none")
	cmd.Dir = t.TempDir()
	cmd.Env = os.Environ()
	for name, value := range environment {
		cmd.Env = append(cmd.Env, name+"="+value)
	}
	out, _ := cmd.CombinedOutput()
	if want := "mtagd: --log-format: must be one of text, json, not \"none\"\n"; string(out) != want {
		t.Errorf("%v: %s", environment, out)
	}
}

func TestKubernetesManifests(t *testing.T) {
	objects := kubernetes(t)
	deployment := objects["Deployment"]
	pod := at[object](t, deployment, "spec.template.spec")
	container := at[object](t, pod, "containers.0")
	labels := at[object](t, deployment, "spec.template.metadata.labels")

	for kind, path := range map[string]string{
		"Deployment": "spec.selector.matchLabels", "Service": "spec.selector", "PodDisruptionBudget": "spec.selector.matchLabels",
		"NetworkPolicy": "spec.podSelector.matchLabels", "PodMonitor": "spec.selector.matchLabels",
	} {
		if selector := at[object](t, objects[kind], path); !maps.Equal(selector, labels) {
			t.Errorf("%s selects %v, the pods have %v", kind, selector, labels)
		}
	}
	for i := range at[[]any](t, pod, "topologySpreadConstraints") {
		if selector := at[object](t, pod, "topologySpreadConstraints."+strconv.Itoa(i)+".labelSelector.matchLabels"); !maps.Equal(selector, labels) {
			t.Errorf("the spread counts %v, the pods have %v", selector, labels)
		}
	}

	ports := map[string]bool{}
	for _, p := range at[[]any](t, container, "ports") {
		ports[":"+strconv.FormatUint(at[uint64](t, p, "containerPort"), 10)] = true
		ports[at[string](t, p, "name")] = true
	}
	var used []string
	for _, p := range at[[]any](t, objects["Service"], "spec.ports") {
		used = append(used, at[string](t, p, "targetPort"))
	}
	for i := range at[[]any](t, objects["NetworkPolicy"], "spec.ingress") {
		for _, p := range at[[]any](t, objects["NetworkPolicy"], "spec.ingress."+strconv.Itoa(i)+".ports") {
			used = append(used, at[string](t, p, "port"))
		}
	}
	used = append(used, at[string](t, objects["PodMonitor"], "spec.podMetricsEndpoints.0.port"))
	for probe, path := range map[string]string{"startupProbe": healthPage, "livenessProbe": healthPage, "readinessProbe": readyPage} {
		used = append(used, at[string](t, container, probe+".httpGet.port"))
		if got := at[string](t, container, probe+".httpGet.path"); got != path {
			t.Errorf("%s asks %s, want %s", probe, got, path)
		}
	}

	environment := map[string]string{}
	for name, value := range at[object](t, objects["ConfigMap"], "data") {
		environment[name] = value.(string)
	}
	for _, v := range at[[]any](t, container, "env") {
		name := at[string](t, v, "name")
		if v.(object)["valueFrom"] == nil {
			environment[name] = at[string](t, v, "value")
			if strings.HasPrefix(environment[name], ":") {
				used = append(used, environment[name])
			}
			continue
		}
		if secret := at[string](t, v, "valueFrom.secretKeyRef.name"); secret != "mtagd" {
			t.Errorf("%s is of the secret %s", name, secret)
		}
		key := at[string](t, v, "valueFrom.secretKeyRef.key")
		environment[name] = map[string]string{"store": "postgres://mtagd@127.0.0.1:1/mtagd", "admin-token": testToken}[key]
		if !strings.Contains(readDeploy(t, "kubernetes/config.yaml"), "--from-literal="+key+"=") {
			t.Errorf("config.yaml does not say how to make the secret %s", key)
		}
	}
	checkServe(t, environment)
	for _, name := range []string{"MTAGD_STORE", "MTAGD_ADMIN", "MTAGD_ADMIN_TOKEN", "MTAGD_HTTP", "MTAGD_HTTPS", "MTAGD_DATA"} {
		if environment[name] == "" {
			t.Errorf("the pods have no %s", name)
		}
	}
	for _, port := range used {
		if !ports[port] {
			t.Errorf("the pods have no port %s", port)
		}
	}
	if key := at[string](t, objects["PodMonitor"], "spec.podMetricsEndpoints.0.authorization.credentials.key"); key != "admin-token" {
		t.Errorf("the monitor sends the secret %s", key)
	}

	grace := time.Duration(at[uint64](t, pod, "terminationGracePeriodSeconds")) * time.Second
	pause := time.Duration(at[uint64](t, container, "lifecycle.preStop.sleep.seconds")) * time.Second
	if grace < pause+stopTimeout+10*time.Second {
		t.Errorf("a pod is killed after %s, but pauses for %s and finishes requests for up to %s", grace, pause, stopTimeout)
	}
	mount := at[string](t, container, "volumeMounts.0.mountPath")
	if !strings.HasPrefix(environment["MTAGD_DATA"], mount+"/") {
		t.Errorf("the data directory is %s, the volume %s", environment["MTAGD_DATA"], mount)
	}
	user := at[uint64](t, pod, "securityContext.runAsUser")
	if compose := readDeploy(t, "compose.yaml"); !strings.Contains(compose, "uid="+strconv.FormatUint(user, 10)) {
		t.Errorf("compose.yaml has another user than %d", user)
	}
}

func TestComposeFile(t *testing.T) {
	var compose object
	readYAML(t, "compose.yaml", &compose)
	services, secrets := at[object](t, compose, "services"), at[object](t, compose, "secrets")
	volumes := at[object](t, compose, "volumes")
	for name := range services {
		service := at[object](t, services, name)
		for _, secret := range list(service["secrets"]) {
			if secrets[secret] == nil {
				t.Errorf("%s has the secret %s, which there is not", name, secret)
			}
		}
		for _, volume := range list(service["volumes"]) {
			from, _, _ := strings.Cut(volume, ":")
			if file, isFile := strings.CutPrefix(from, "./"); isFile {
				readDeploy(t, file)
			} else if _, ok := volumes[from]; !ok {
				t.Errorf("%s has the volume %s, which there is not", name, from)
			}
		}
	}

	pinned := regexp.MustCompile(`@sha256:[0-9a-f]{64}$`)
	for name := range services {
		service := at[object](t, services, name)
		if image := at[string](t, service, "image"); service["build"] == nil && !pinned.MatchString(image) {
			t.Errorf("%s has the image %s without a digest", name, image)
		}
	}
	for _, from := range regexp.MustCompile(`(?m)^FROM (\S+)`).FindAllStringSubmatch(readDeploy(t, "Dockerfile"), -1) {
		if !pinned.MatchString(from[1]) {
			t.Errorf("the Dockerfile has the image %s without a digest", from[1])
		}
	}

	// Nobody but the balancer can have its address.
	network := at[object](t, compose, "networks.default.ipam.config.0")
	balancer := netip.MustParseAddr(at[string](t, services, "balancer.networks.default.ipv4_address"))
	if !netip.MustParsePrefix(at[string](t, network, "subnet")).Contains(balancer) || netip.MustParsePrefix(at[string](t, network, "ip_range")).Contains(balancer) {
		t.Errorf("the balancer has %s, the network %v", balancer, network)
	}

	// The variables of the nodes, with the file that compose-setup.sh makes.
	store := regexp.MustCompile(`store: (\S+)\\n`).FindStringSubmatch(readDeploy(t, "compose-setup.sh"))
	if store == nil || !strings.Contains(store[1], "?sslmode=verify-full&sslrootcert=") {
		t.Fatalf("nodes do not check the database's certificate: %q", store)
	}
	for _, name := range []string{"node1", "node2"} {
		environment := map[string]string{}
		for variable, value := range at[object](t, services, name+".environment") {
			environment[variable] = regexp.MustCompile(`\$\{\w+:\?.*\}`).ReplaceAllString(value.(string), "mtagd.example.com")
		}
		file := filepath.Join(t.TempDir(), "mtagd.yaml")
		secret := "store: " + store[1] + "\nadmin-token: " + testToken + "\n"
		if err := os.WriteFile(file, []byte(secret), 0o600); err != nil {
			t.Fatal(err)
		}
		environment["MTAGD_CONFIG"] = file
		checkServe(t, environment)
		if environment["MTAGD_TRUSTED_PROXY"] != balancer.String() {
			t.Errorf("nodes trust %s, the balancer is %s", environment["MTAGD_TRUSTED_PROXY"], balancer)
		}
		balancer := readDeploy(t, "haproxy.cfg")
		dockerfile := readDeploy(t, "Dockerfile")
		for _, port := range []string{"8080", "8443"} {
			if !strings.Contains(balancer, name+":"+port+" check") || !regexp.MustCompile(`MTAGD_HTTPS?=:`+port).MatchString(dockerfile) {
				t.Errorf("the balancer does not use %s:%s", name, port)
			}
		}
		if !strings.Contains(balancer, "port "+strings.TrimPrefix(environment["MTAGD_ADMIN"], ":")) || !strings.Contains(balancer, "GET "+readyPage) {
			t.Error("the balancer does not check the admin pages")
		}
	}
}

// list returns a YAML list of words.
func list(v any) (words []string) {
	all, _ := v.([]any)
	for _, word := range all {
		words = append(words, word.(string))
	}
	return words
}

// The shell scripts of deploy/ have no syntax errors.
func TestDeployScripts(t *testing.T) {
	scripts, err := filepath.Glob("../../deploy/*.sh")
	if err != nil || !slices.ContainsFunc(scripts, func(s string) bool { return strings.HasSuffix(s, "postgres-standby.sh") }) {
		t.Fatal(scripts, err)
	}
	for _, script := range scripts {
		if out, err := exec.Command("bash", "-n", script).CombinedOutput(); err != nil || len(bytes.TrimSpace(out)) > 0 {
			t.Errorf("%s: %v: %s", script, err, out)
		}
	}
}
