package main

import (
	"io"
	"net/http"
	"os/exec"
	"strings"
	"testing"

	"mtagd/store"
	"mtagd/store/local"
)

// A domain of an earlier version or of other flags, which could not be claimed today, is a warning at the start.
func TestServeWarnsOfDomainsThatCannotBeClaimed(t *testing.T) {
	data := t.TempDir()
	control, err := local.OpenControl(data, local.Options{})
	if err != nil {
		t.Fatal(err)
	}
	p, err := control.AddPartner(t.Context(), "Agency")
	if err != nil {
		t.Fatal(err)
	}
	for _, domain := range []string{"shoes.test", "mtagd.test", "hats.com"} {
		m, err := control.AddMerchant(t.Context(), p.ID, store.NewMerchant{Name: "Shop"})
		if err != nil {
			t.Fatal(err)
		}
		if _, _, err := control.GenerateTag(t.Context(), m.ID, store.ServerSide, domain); err != nil {
			t.Fatal(err)
		}
	}
	// Without a server, the command does not know the service's hosts.
	if err := control.Close(); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("mtagd", "partner", "preverify", string(p.ID), "--domain", "t.agency.invalid", "--data", data).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}

	s, err := startService(data, "127.0.0.1:1")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`"msg":"a domain could not be registered today; release it with \"mtagd domain release\"","partner":"` + string(p.ID) + `"`,
		`"domain":"shoes.test","error":"domain must have a public top-level domain`,
		`"domain":"mtagd.test","error":"domain must not be on mtagd.test`,
		`"domain":"t.agency.invalid","error":"domain must have a public top-level domain`,
	} {
		if err := s.waitLog(want); err != nil {
			t.Error(err)
		}
	}
	resp, err := http.Get("http://" + s.admin + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	metrics, err := io.ReadAll(resp.Body)
	if err != nil || !strings.Contains(string(metrics), "\nmtagd_labels_used 3\n") {
		t.Errorf("%v: no 3 labels in the metrics: %s", err, metrics)
	}
	if strings.Contains(s.Log(), "hats.com") {
		t.Errorf("a warning of a domain that can be claimed: %s", s.Log())
	}
	if err := s.stop(); err != nil {
		t.Error(err)
	}
}
