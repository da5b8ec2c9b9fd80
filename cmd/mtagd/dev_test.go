package main

import (
	"bufio"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"mtagd/partnerapi"
	"mtagd/store/testenv"
)

// startDev runs "mtagd dev" in dir on a free port, and returns its address, and the API key and the console's link that it
// prints.
func startDev(t *testing.T, dir string) (url, key, link string) {
	t.Helper()
	cmd := exec.Command("mtagd", "dev", "--http", "127.0.0.1:0")
	cmd.Dir = dir
	cmd.Stderr = os.Stderr
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Error(err)
		}
		if err := cmd.Wait(); err != nil {
			t.Errorf("mtagd dev: %v", err)
		}
	})
	lines := bufio.NewScanner(stdout)
	for lines.Scan() {
		switch words := strings.Fields(lines.Text()); {
		case len(words) == 3 && words[0] == "API":
			key = words[2]
		case len(words) == 2 && words[0] == "Console":
			link = words[1]
		case len(words) == 3 && words[0] == "Demo":
			url = strings.TrimSuffix(words[2], "/demo/")
		case strings.Contains(lines.Text(), "curl"):
			go io.Copy(io.Discard, stdout)
			return url, key, link
		}
	}
	t.Fatal("mtagd dev ended before it printed its address")
	return
}

func get(t *testing.T, url, key string) (status int, body string) {
	t.Helper()
	req, err := http.NewRequest("GET", url, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+key)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(text)
}

// Each start of development mode prints the same key. The key works, and only its owner may read its file.
func TestDevKeepsItsKey(t *testing.T) {
	dir := t.TempDir()
	var first string
	t.Run("first start", func(t *testing.T) {
		var url string
		url, first, _ = startDev(t, dir)
		if status, body := get(t, url+"/v1/partners/merchant", first); status != 200 || !strings.Contains(body, "Demo shop") {
			t.Errorf("%d %s", status, body)
		}
		if status, _ := get(t, strings.Replace(url, "127.0.0.1", "localhost", 1)+"/v1/partners/config", first); status != 200 {
			t.Errorf("at localhost it answers %d", status)
		}
		info, err := os.Stat(filepath.Join(dir, "data", "demo.key"))
		if err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("demo.key: %v, mode %v", err, info.Mode())
		}
	})
	t.Run("second start", func(t *testing.T) {
		url, second, _ := startDev(t, dir)
		if second != first {
			t.Error("the key has changed")
		}
		_, body := get(t, url+"/v1/partners/merchant", second)
		var list struct{ Pagination struct{ TotalItems int } }
		if err := json.Unmarshal([]byte(body), &list); err != nil || list.Pagination.TotalItems != 3 {
			t.Errorf("want the demo shop and two with a made-up history, once each: %s", body)
		}
	})
	t.Run("start after the key was revoked", func(t *testing.T) {
		cmd := exec.Command("mtagd", "key", "revoke", first[len("mtp_"):len("mtp_")+12])
		cmd.Dir = dir
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		url, third, _ := startDev(t, dir)
		if status, body := get(t, url+"/v1/partners/config", third); status != 200 || third == first {
			t.Errorf("%d %s", status, body)
		}
	})
}

// The console has three months of events at once, which say that they are made up, and the link that is printed signs in to
// it.
func TestDevHistory(t *testing.T) {
	url, key, link := startDev(t, t.TempDir())
	read := func(path string, answer any) {
		t.Helper()
		if status, body := get(t, url+"/v1/partners"+path, key); status != 200 {
			t.Fatalf("%s: %d %s", path, status, body)
		} else if err := json.Unmarshal([]byte(body), answer); err != nil {
			t.Fatal(err)
		}
	}
	var list struct {
		Merchants []struct{ Name, MerchantID string }
	}
	read("/merchant?name=(made-up+history)", &list)
	if len(list.Merchants) != 2 {
		t.Fatalf("the merchants with a history are %v", list.Merchants)
	}
	for _, m := range list.Merchants {
		var counts struct {
			Total  int
			Counts []int
		}
		read("/events/summary?bucket=day&merchantId="+m.MerchantID, &counts)
		if days := counts.Counts; len(days) < 91 || slices.Contains(days[:90], 0) || counts.Total < 5000 {
			t.Errorf("%s has %v", m.Name, counts)
		}
		var names struct {
			Groups []struct {
				Name  string `json:"event_name"`
				Total int
			}
		}
		read("/events/summary?by=event_name&merchantId="+m.MerchantID, &names)
		for i, want := range []string{"PageView", "ViewItem", "AddToCart", "BeginCheckout", "AddPaymentInfo", "Purchase", "Refund"} {
			if len(names.Groups) != 7 || names.Groups[i].Name != want {
				t.Fatalf("%s has the names %v", m.Name, names.Groups)
			}
		}
		var events struct {
			Events []struct {
				RawData struct{ Demo bool } `json:"raw_data"`
			}
		}
		read("/events?limit=100&merchantId="+m.MerchantID, &events)
		for _, e := range events.Events {
			if !e.RawData.Demo {
				t.Fatalf("an event does not say that it is made up: %+v", e)
			}
		}
	}
	_, secret, ok := strings.Cut(link, "/console/#link=")
	resp, err := http.Post(url+"/console/session", "application/json", strings.NewReader(`{"link":"`+secret+`"}`))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if !ok || resp.StatusCode != 200 {
		t.Errorf("the link %s: %s", link, resp.Status)
	}
}

// The address without a path leads to the shop.
func TestDevRootLeadsToTheShop(t *testing.T) {
	url, _, _ := startDev(t, t.TempDir())
	client := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	resp, err := client.Get(url + "/")
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if got := resp.Header.Get("Location"); resp.StatusCode != http.StatusFound || got != "/demo/" {
		t.Errorf("%s, Location %q", resp.Status, got)
	}
}

// The guide shows the snippet that partners get.
func TestGuideSnippet(t *testing.T) {
	guide, err := os.ReadFile("../../edge/sdk/README.md")
	if err != nil {
		t.Fatal(err)
	}
	snippet := strings.ReplaceAll(partnerapi.Snippet("https://tags.example.com", "TAG"), "TAG", "cs_…")
	if !strings.Contains(string(guide), "```html\n"+snippet+"```") {
		t.Errorf("not in the guide:\n%s", snippet)
	}
}

// The shell commands in the README work as they are.
func TestReadmeCommands(t *testing.T) {
	testenv.Program(t, "curl")
	readme, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	var script strings.Builder
	for _, block := range regexp.MustCompile("(?s)```sh\n(.*?)```").FindAllStringSubmatch(string(readme), -1) {
		script.WriteString(block[1])
	}
	dir := t.TempDir()
	url, _, _ := startDev(t, dir)
	cmd := exec.Command("sh", "-euc", strings.ReplaceAll(script.String(), "http://127.0.0.1:8080", url))
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if got := strings.Count(string(out), `{"message":"Event accepted"}`); got != 2 {
		t.Errorf("%d of 2 events were accepted:\n%s", got, out)
	}
	if !strings.Contains(string(out), `"event_name":"Purchase"`) || !strings.Contains(string(out), `"totalItems":2`) {
		t.Errorf("the events are not listed:\n%s", out)
	}
}
