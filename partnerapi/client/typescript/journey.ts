// The way from a new merchant to its first event. Run it with two addresses and an API key; it ends with an error when anything
// is not as expected.
import { newClient, type Schemas } from "./client";

declare const process: { argv: string[]; exit(code: number): never };

function expect(condition: boolean, what: string, got: unknown): asserts condition {
  if (!condition) {
    console.error(what, JSON.stringify(got));
    process.exit(1);
  }
}

const [baseURL, tagURL, key] = process.argv.slice(2) as [string, string, string];
const api = newClient(baseURL, key);

const created = await api.POST("/v1/partners/merchant", {
  params: { header: { "Idempotency-Key": "journey-1" } },
  body: { name: "Shoe shop" },
});
expect(created.data !== undefined, "no merchant:", created.error);
const merchantId = created.data.merchantId;

const generated = await api.POST("/v1/partners/tracktag/generate", { body: { merchantId, type: "client-side" } });
expect(generated.data !== undefined, "no tag:", generated.error);
const tagId = generated.data.tagId;

const purchase: Schemas["NewEvent"] = { muid: "visitor-1", event: "Purchase", event_id: "order-1001", value: 89 };
const tagHost = newClient(tagURL);
const sent = await tagHost.POST("/mark/{tagId}", { params: { path: { tagId } }, body: purchase });
expect(sent.response.status === 201, "not recorded:", sent.error);
const batch = await tagHost.POST("/mark/{tagId}", { params: { path: { tagId } }, body: [purchase, { event: "Login" }] });
expect(batch.response.status === 200 && batch.data !== undefined && "results" in batch.data && batch.data.results[1]?.status === 400,
  "the batch has other results:", batch.data ?? batch.error);

const listed = await api.GET("/v1/partners/events", { params: { query: { merchantId, events: "Purchase", limit: 5 } } });
expect(listed.data?.events[0]?.raw_data["value"] === 89 && listed.data.pagination.totalItems === 1, "not listed:", listed.data ?? listed.error);

const changed = await api.PATCH("/v1/partners/merchant/{merchantId}", { params: { path: { merchantId } }, body: { retentionDays: null } });
expect(changed.data?.retentionDays === null, "not changed:", changed.data ?? changed.error);

const wrong = await api.GET("/v1/partners/events", { params: { query: { merchantId, limit: 101 } } });
expect(wrong.error?.code === "VALIDATION_ERROR" && wrong.error.statusCode === 400, "101 is no error:", wrong);
const stranger = await newClient(baseURL).GET("/v1/partners/config");
expect(stranger.error?.code === "AUTHENTICATION_ERROR", "a stranger got:", stranger.data);
console.log("ok");
