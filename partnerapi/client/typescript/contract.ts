// What the contract test of the clients asks of this one. Its arguments are a server that fails again and again, and an API key; it
// prints what it has got. The Go client has the same in contract_test.go.
import { Client, MtagdError } from "./client.js";

declare const process: { argv: string[]; exitCode?: number };

const [url, key] = process.argv.slice(2) as [string, string];
const options = { backoff: 1 };
const api = new Client(url, key, options);
const tagHost = new Client(url, "", options);

async function failed(request: Promise<unknown>) {
  try {
    await request;
    return "no error";
  } catch (error) {
    if (!(error instanceof MtagdError)) return "no answer";
    return [error.status, error.code, error.field, error.attempts > 1, error.requestId !== "" && error.message !== ""].join(" ");
  }
}

async function text(format: "ndjson" | "csv") {
  return new Response(await api.stream("exportEvents", { query: { merchantId, format } })).text();
}

const { merchantId } = await api.call("createMerchant", { body: { name: "Contract" } });
const { tagId } = await api.call("generateTag", { body: { merchantId, type: "client-side" } });
await tagHost.sendEvent(tagId, { muid: "visitor", event: "Purchase", value: 0 });
const batch = Array.from({ length: 250 }, (_, i) => ({ muid: "visitor", event: "Purchase", value: i + 1 }));
const sent = await tagHost.sendEvents(tagId, [...batch, { event: "Login" }]);

const listed: unknown[] = [];
for await (const event of api.events({ merchantId, sortOrder: "asc" })) listed.push(event.raw_data["value"]);

const followed: unknown[] = [];
let cursor: string | undefined;
for (const upTo of [100, 251]) {
  for await (const page of api.feed({ merchantId, after: cursor })) {
    for (const event of page.events) followed.push(event.raw_data["value"]);
    cursor = page.cursor;
    if (followed.length >= upTo) break;
  }
}

const changed = await api.call("changeMerchant", { path: { merchantId }, body: { retentionDays: null } });
const stop = new AbortController();
const config = failed(api.call("readConfig", { signal: stop.signal }));
await fetch(url + "/hangs"); // until that request has arrived
stop.abort();

console.log(JSON.stringify({
  accepted: sent.accepted,
  refused: sent.results[250]?.status,
  listed,
  followed,
  forEver: changed.retentionDays === null,
  exported: (await text("ndjson")).trim().split("\n").length,
  brokenOff: await failed(text("csv")),
  secret: await failed(api.call("createSecret", { path: { merchantId } })),
  secrets: (await api.call("readMerchant", { path: { merchantId } })).secrets?.length,
  invalid: await failed(api.call("listEvents", { query: { merchantId, limit: 101 } })),
  missing: await failed(api.call("readMerchant", { path: { merchantId: "0b2e8a52-5d3c-4f4e-9d3a-0a7c3c0f5a11" } })),
  stranger: await failed(tagHost.call("readConfig", {})),
  nobody: await failed(tagHost.sendEvent(tagId, { event: "Login" })),
  cancelled: await config,
}));
