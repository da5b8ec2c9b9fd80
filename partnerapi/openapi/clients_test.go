package openapi_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/evanw/esbuild/pkg/api"
	"github.com/oapi-codegen/nullable"

	client "mtagd/partnerapi/client/go"
	"mtagd/store/testenv"
)

// TestTheGoClient goes the way from a new merchant to its first event.
func TestTheGoClient(t *testing.T) {
	s := newService(t)
	ctx, key := t.Context(), s.fixture(true).key
	partner, err := client.New(s.url, key)
	must(t, err)
	created, err := partner.CreateMerchantWithResponse(ctx, &client.CreateMerchantParams{IdempotencyKey: new("journey-1")},
		client.MerchantInput{Name: "Shoe shop"})
	must(t, err)
	if created.JSON201 == nil {
		t.Fatalf("no merchant: %s", created.Body)
	}
	merchant := created.JSON201.MerchantID
	generated, err := partner.GenerateTagWithResponse(ctx, client.TagInput{MerchantID: merchant, Type: client.TagInputTypeClientSide})
	must(t, err)
	if generated.JSON200 == nil {
		t.Fatalf("no tag: %s", generated.Body)
	}

	host, err := client.New(s.url, "")
	must(t, err)
	purchase := client.NewEvent{Muid: new("visitor-1"), Event: new("Purchase"), EventID: new("order-1001"),
		AdditionalProperties: map[string]any{"value": 89}}
	var body client.EventOrEvents
	must(t, body.FromNewEvent(purchase))
	sent, err := host.SendEventsWithResponse(ctx, generated.JSON200.TagID, nil, body)
	must(t, err)
	if sent.JSON201 == nil {
		t.Fatalf("not recorded: %s", sent.Body)
	}
	must(t, body.FromNewEvents(client.NewEvents{purchase, {Event: new("Login")}}))
	batch, err := host.SendEventsWithResponse(ctx, generated.JSON200.TagID, nil, body)
	must(t, err)
	if batch.JSON200 == nil || batch.JSON200.Accepted != 1 || batch.JSON200.Results[1].Status != 400 {
		t.Fatalf("the batch has other results: %s", batch.Body)
	}

	listed, err := partner.ListEventsWithResponse(ctx, &client.ListEventsParams{MerchantID: merchant, Events: new("Purchase"), Limit: new(5)})
	must(t, err)
	if listed.JSON200 == nil || listed.JSON200.Pagination.Total != 1 || listed.JSON200.Events[0].RawData["value"] != 89.0 {
		t.Errorf("not listed: %s", listed.Body)
	}
	changed, err := partner.ChangeMerchantWithResponse(ctx, merchant, client.MerchantChange{RetentionDays: nullable.NewNullNullable[int]()})
	must(t, err)
	if changed.JSON200 == nil || !changed.JSON200.RetentionDays.IsNull() || changed.JSON200.Name != "Shoe shop" {
		t.Errorf("not changed: %s", changed.Body)
	}
	tag, err := partner.ReadTagWithResponse(ctx, generated.JSON200.TagID)
	must(t, err)
	if tag.JSON200 == nil || tag.JSON200.Lifecycle != client.Receiving || !tag.JSON200.DNS.IsNull() {
		t.Errorf("not read: %s", tag.Body)
	}
	wrong, err := partner.ListEventsWithResponse(ctx, &client.ListEventsParams{MerchantID: merchant, Limit: new(101)})
	must(t, err)
	if wrong.JSONDefault == nil || wrong.JSONDefault.Code != client.ErrorCodeVALIDATIONERROR {
		t.Errorf("101 is no error: %s", wrong.Body)
	}
}

const (
	goDir         = "../client/go"
	typescriptDir = "../client/typescript"
)

// TestTheTypeScriptClient compiles journey.ts, checks its types and runs it.
func TestTheTypeScriptClient(t *testing.T) {
	node := needNode(t)
	if out, err := exec.CommandContext(t.Context(), filepath.Join(typescriptDir, "node_modules/.bin/tsc"), "--project", typescriptDir).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	program := filepath.Join(t.TempDir(), "journey.mjs")
	built := api.Build(api.BuildOptions{EntryPoints: []string{typescriptDir + "/journey.ts"}, Outfile: program, Bundle: true, Write: true,
		Format: api.FormatESModule, Platform: api.PlatformNode})
	if len(built.Errors) > 0 {
		t.Fatal(built.Errors)
	}
	s := newService(t)
	out, err := exec.CommandContext(t.Context(), node, program, s.url, s.url, s.fixture(true).key).CombinedOutput()
	if err != nil || string(out) != "ok\n" {
		t.Errorf("%v: %s", err, out)
	}
}

// TestTheClientsAreUpToDate generates both clients again.
func TestTheClientsAreUpToDate(t *testing.T) {
	document := filepath.Join(t.TempDir(), "openapi.json")
	generate := func(program string, arguments ...string) {
		t.Helper()
		if out, err := exec.CommandContext(t.Context(), program, arguments...).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v: %s", program, err, out)
		}
	}
	compare := func(generated, committed string) {
		t.Helper()
		got, err := os.ReadFile(generated)
		must(t, err)
		want, err := os.ReadFile(committed)
		must(t, err)
		if !bytes.Equal(got, want) {
			t.Errorf("%s is out of date: run make clients", committed)
		}
	}
	generate("go", "run", "-pgo=off", "../client/generate", document)

	t.Run("Go", func(t *testing.T) {
		out := filepath.Join(t.TempDir(), "client.gen.go")
		generate("go", "tool", "-modfile=../../tools/go.mod", "oapi-codegen", "-config", goDir+"/oapi-codegen.yaml", "-o", out, document)
		compare(out, goDir+"/client.gen.go")
	})
	t.Run("TypeScript", func(t *testing.T) {
		needNode(t)
		out := filepath.Join(t.TempDir(), "schema.ts")
		generate(filepath.Join(typescriptDir, "node_modules/.bin/openapi-typescript"), document, "-o", out)
		compare(out, typescriptDir+"/schema.ts")
	})
}

// needNode returns the program node. It skips the test without node and the packages of the TypeScript client.
func needNode(t *testing.T) string {
	t.Helper()
	node := testenv.Program(t, "node")
	if _, err := os.Stat(typescriptDir + "/node_modules"); err != nil {
		testenv.Missing(t, "the packages of the TypeScript client are not installed: make node")
	}
	return node
}
