// The list of merchants.

import { useEffect, useRef, useState } from "preact/hooks";
import { call, newKey, url, type Merchant, type MerchantList, type Tag } from "./api.ts";
import { day, number } from "./format.ts";
import { useGet, useResource } from "./resource.ts";
import { address, change, go, place } from "./route.ts";
import { mayChange } from "./session.ts";
import { statusOfMerchant, type Status } from "./status.ts";
import { Button, Check, Dialog, Empty, Form, Heading, Loaded, Pager, Pill, Problem, Text, useTask } from "./ui.tsx";

export function Merchants() {
  const query = place.value.query;
  const by = query.get("by") === "domain" ? "domain" : "name";
  const text = query.get("search") ?? "";
  const list = useGet<MerchantList>(url("/merchant", { limit: 20, page: query.get("page") ?? "", [by]: text }));
  const [adding, setAdding] = useState(false);
  return (
    <>
      <div class="headline">
        <Heading title="Merchants" />
        {mayChange.value && (
          <Button kind="primary" onClick={() => setAdding(true)}>
            New merchant
          </Button>
        )}
      </div>
      <Search by={by} text={text} />
      <Loaded of={list} rows={5}>
        {({ merchants, pagination }) =>
          merchants.length === 0 ? (
            <Nothing searched={text !== ""} page={pagination.currentPage} add={() => setAdding(true)} />
          ) : (
            <>
              <div class="rows merchants">
                <div class="row head" aria-hidden="true">
                  <span>Merchant</span>
                  <span>Status</span>
                  <span class="end">Events</span>
                  <span class="end">Created</span>
                </div>
                <ul>
                  {merchants.map((m) => (
                    <Row key={m.merchantId} merchant={m} />
                  ))}
                </ul>
              </div>
              <Pager of={pagination} noun="merchants" />
            </>
          )
        }
      </Loaded>
      {adding && <Create onClose={() => setAdding(false)} />}
    </>
  );
}

function Nothing({ searched, page, add }: { searched: boolean; page: number; add: () => void }) {
  if (searched || page > 1) {
    return (
      <Empty title={searched ? "No merchant matches." : "This page is past the end."}>
        <a class="button" href={address("/merchants")}>Show all</a>
      </Empty>
    );
  }
  return (
    <Empty title="Your first merchant">
      <p class="dim">A merchant is a shop whose events you collect. Create it, set up its tag, and watch the first event come in.</p>
      {mayChange.value && <Button kind="primary" onClick={add}>New merchant</Button>}
    </Empty>
  );
}

// Search changes the address a moment after the last key.
function Search({ by, text }: { by: string; text: string }) {
  const [typed, setTyped] = useState(text);
  useEffect(() => setTyped(text), [text]);
  useEffect(() => {
    if (typed === text) return;
    const timer = setTimeout(() => change({ search: typed }, true), 250);
    return () => clearTimeout(timer);
  }, [typed]);
  return (
    <form
      class="search"
      role="search"
      onSubmit={(event) => {
        event.preventDefault();
        change({ search: typed });
      }}
    >
      <input
        type="search"
        value={typed}
        maxLength={256}
        aria-label={by === "domain" ? "Search by domain" : "Search by name"}
        placeholder={by === "domain" ? "Search by domain" : "Search by name"}
        onInput={(event) => setTyped(event.currentTarget.value)}
      />
      <select aria-label="Search in" value={by} onChange={(event) => change({ by: event.currentTarget.value === "domain" ? "domain" : "" })}>
        <option value="name">Name</option>
        <option value="domain">Domain</option>
      </select>
    </form>
  );
}

function Row({ merchant }: { merchant: Merchant }) {
  return (
    <li class="row">
      <span>
        <a class="strong" href={address("/merchants/" + merchant.merchantId)}>{merchant.name}</a>
        {merchant.domain && <small>{merchant.domain}</small>}
      </span>
      <span>
        <MerchantStatus merchant={merchant} />
      </span>
      <span class="end number">
        {merchant.usage ? number(merchant.usage.events) : "–"}
        <span class="narrow">{merchant.usage?.events === 1 ? " event" : " events"}</span>
      </span>
      <span class="end dim">
        <span class="narrow">created </span>
        <time dateTime={merchant.createdAt}>{day(merchant.createdAt)}</time>
      </span>
    </li>
  );
}

// MerchantStatus reads the merchant's tags: the list does not say how they are doing.
function MerchantStatus({ merchant }: { merchant: Merchant }) {
  const ids = Object.values(merchant.tracktags).map((tag) => tag.tagId);
  const tags = useResource("tags of " + merchant.merchantId + "?" + ids.join(), (_, signal) => Promise.all(ids.map((id) => call<Tag>("GET", url("/tracktag/" + id), { signal }))));
  if (tags.error) return <span class="dim">Unknown</span>;
  return tags.data ? <StatusPill of={statusOfMerchant(merchant, tags.data)} /> : <span class="dim">…</span>;
}

export function StatusPill({ of }: { of: Status }) {
  return (
    <Pill tone={of.tone}>
      {of.text} {of.since && <time dateTime={of.since}>{day(of.since)}</time>}
    </Pill>
  );
}

function Create({ onClose }: { onClose: () => void }) {
  const [name, setName] = useState("");
  const [domain, setDomain] = useState("");
  const [secret, setSecret] = useState(false);
  const [missing, setMissing] = useState(false);
  const task = useTask();
  // The same merchant sent again, after an answer that got lost, has the same key.
  const once = useRef({ body: "", key: "" });
  const submit = () => {
    setMissing(!name.trim());
    if (!name.trim()) return;
    const body = { name: name.trim(), ...(domain.trim() && { domain: domain.trim().toLowerCase() }), ...(secret && { identityRequiresSecret: true }) };
    const text = JSON.stringify(body);
    if (once.current.body !== text) once.current = { body: text, key: newKey() };
    void task.run(async () => {
      const made = await call<Merchant>("POST", url("/merchant"), { body, headers: { "Idempotency-Key": once.current.key } });
      go(address("/merchants/" + made.merchantId + (secret ? "/settings" : "")));
    });
  };
  return (
    <Dialog title="New merchant" onClose={onClose}>
      <Form onSubmit={submit}>
        <Text label="Name" error={missing ? "A merchant needs a name." : undefined} value={name} maxLength={256} set={setName} />
        <Text label="Domain (optional)" hint="The shop's root domain, such as example.com. You can change it later." value={domain} autocapitalize="off" spellcheck={false} inputMode="url" placeholder="example.com" set={setDomain} />
        <Check label="Require a secret for identifiers" checked={secret} set={setSecret}
          hint="Otherwise whoever knows a tag id and somebody's email can ask for that person's muid, and link identifiers of his own to it. The shop's backend sends the secret, which you create in the settings" />
        {task.error && <Problem message={task.error} />}
        <div class="actions">
          <Button onClick={onClose}>Cancel</Button>
          <Button type="submit" kind="primary" busy={task.busy}>Create merchant</Button>
        </div>
      </Form>
    </Dialog>
  );
}
