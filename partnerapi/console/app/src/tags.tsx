// A merchant's tags, and for each the one next thing to do.

import { useState } from "preact/hooks";
import { call, url, type Config, type Tag, type TagType } from "./api.ts";
import { FirstEvent } from "./firstevent.tsx";
import type { Part } from "./merchant.tsx";
import { StatusPill } from "./merchants.tsx";
import { useEvery, useGet } from "./resource.ts";
import { mayChange } from "./session.ts";
import { Snippet } from "./snippet.tsx";
import { statusOfTag, typeNames } from "./status.ts";
import { Button, Copy, Form, Heading, Loaded, Problem, Text, Time, useTask } from "./ui.tsx";

const types: TagType[] = ["server-side", "preverified", "client-side"];

const about: Record<TagType, string> = {
  "server-side": "Runs on a host under the shop's own domain. Browsers treat it as part of the shop. It needs one DNS record.",
  preverified: "Runs on your tracking domain. Nothing is left to do in DNS.",
  "client-side": "Runs on a host that all merchants share. It works at once, but browsers keep its cookies for a shorter time.",
};

export function Tags({ merchant, reload }: Part) {
  const config = useGet<Config>(url("/config"));
  const present = types.filter((type) => merchant.tracktags[type]);
  const missing = types.filter((type) => !merchant.tracktags[type] && (type !== "preverified" || config.data?.preverifiedEnabled));
  return (
    <>
      <Heading level={2} title={`Tags of ${merchant.name}`}>Tags</Heading>
      {present.length === 0 && <p class="lead">A tag records the events of the shop. Choose the kind that fits; you can add the others later.</p>}
      {present.map((type) => (
        <TagCard key={merchant.tracktags[type]!.tagId} id={merchant.tracktags[type]!.tagId} domain={merchant.domain} />
      ))}
      {mayChange.value && missing.length > 0 && (
        <section class="choices" aria-label="Add a tag">
          <h3>{present.length > 0 ? "Add a tag" : "Add the first tag"}</h3>
          {missing.map((type) => (
            <Generate key={type} type={type} merchant={merchant.merchantId} domain={merchant.domain} done={reload} />
          ))}
        </section>
      )}
      {!mayChange.value && present.length === 0 && <p class="dim">Your key can only read. Somebody with a full key can add a tag.</p>}
    </>
  );
}

function Generate({ type, merchant, domain, done }: { type: TagType; merchant: string; domain: string | undefined; done: () => Promise<void> }) {
  const [root, setRoot] = useState(domain ?? "");
  const task = useTask();
  const generate = () =>
    task.run(async () => {
      await call("POST", url("/tracktag/generate"), { body: { merchantId: merchant, type, ...(type === "server-side" && { domain: root.trim().toLowerCase() }) } });
      await done();
    });
  return (
    <Form class="card choice" onSubmit={generate}>
      <h4>{typeNames[type]}</h4>
      <p class="dim">{about[type]}</p>
      {type === "server-side" && (
        <Text label="Root domain of the shop" hint="Without www. and without https://" value={root} required autocapitalize="off" spellcheck={false} inputMode="url" placeholder="example.com" set={setRoot} />
      )}
      {task.error && <Problem message={task.error} />}
      <Button type="submit" kind="primary" busy={task.busy}>
        Generate {typeNames[type].toLowerCase()} tag
      </Button>
    </Form>
  );
}

// TagCard shows a tag. While something is on its way, it reads the tag again every few seconds.
function TagCard({ id, domain }: { id: string; domain: string | undefined }) {
  const tag = useGet<Tag>(url("/tracktag/" + id));
  const waits = tag.data && !tag.data.suspended && (waitsForCertificate(tag.data) || tag.data.lifecycle === "waiting_for_events");
  useEvery(2000, Boolean(waits), tag.reload);
  return (
    <section class="card tag" aria-labelledby={"t" + id}>
      <Loaded of={tag} rows={4}>
        {(t) => (
          <>
            <div class="headline">
              <h3 id={"t" + id}>{typeNames[t.type]} tag</h3>
              <StatusPill of={statusOfTag(t)} />
            </div>
            <p class="facts">
              <span>
                Host <code>{t.host}</code>
              </span>
              <span>
                Tag id <code>{t.tagId}</code> <Copy text={t.tagId} what="tag id" />
              </span>
            </p>
            <Next tag={t} domain={domain} reload={tag.reload} />
          </>
        )}
      </Loaded>
    </section>
  );
}

function waitsForCertificate(tag: Tag): boolean {
  return tag.isVerified && tag.certificate !== null && tag.certificate.status !== "valid";
}

// Next is the one next thing to do. What is done is there too, but closed.
function Next({ tag, domain, reload }: { tag: Tag; domain: string | undefined; reload: () => Promise<void> }) {
  if (tag.suspended) return <p>The operator has suspended this tag. Its events are refused until that ends.</p>;
  const dnsFirst = tag.lifecycle === "waiting_for_dns" || tag.domainLost || (tag.isVerified && !tag.isConnected && tag.type === "server-side");
  return (
    <>
      {dnsFirst ? (
        <DNS tag={tag} reload={reload} />
      ) : (
        <>
          {waitsForCertificate(tag) && <Certificate tag={tag} />}
          {tag.lifecycle === "receiving" ? (
            <Received tag={tag} />
          ) : (
            <>
              <h4>Next: install the tag</h4>
              <Snippet tag={tag} />
            </>
          )}
          <FirstEvent tag={tag} domain={domain} />
          {tag.lifecycle === "receiving" && (
            <details>
              <summary>Snippet</summary>
              <Snippet tag={tag} />
            </details>
          )}
          {tag.record && tag.type === "server-side" && (
            <details>
              <summary>DNS and certificate</summary>
              <DNS tag={tag} reload={reload} />
              {tag.certificate?.status === "valid" && tag.certificate.notAfter && (
                <p class="dim">
                  The certificate is valid until <Time at={tag.certificate.notAfter} />. It is renewed by itself.
                </p>
              )}
            </details>
          )}
        </>
      )}
    </>
  );
}

function Received({ tag }: { tag: Tag }) {
  const latest = tag.lastEventAt && <Time at={tag.lastEventAt} distance />;
  if (statusOfTag(tag).since) return <p>The latest event came {latest}. Is the snippet still on the pages of the shop?</p>;
  return <p>Events come in. {latest && <>The latest came {latest}.</>}</p>;
}

function Certificate({ tag }: { tag: Tag }) {
  const c = tag.certificate!;
  if (c.status === "failed") {
    return (
      <div class="note warn">
        <p>
          <strong>The certificate could not be obtained yet.</strong> {c.detail}
        </p>
        {c.nextTry && <p>The service tries again <Time at={c.nextTry} distance />.</p>}
      </div>
    );
  }
  return (
    <div class="note" role="status">
      <span class="spinner" aria-hidden="true" /> The certificate of {tag.host} is being ordered. This takes a minute, sometimes ten. You can install the tag meanwhile. {c.detail}
    </div>
  );
}

// DNS shows the record to create, and checks it.
function DNS({ tag, reload }: { tag: Tag; reload: () => Promise<void> }) {
  const task = useTask();
  const [checked, setChecked] = useState(false);
  const verify = async () => {
    setChecked(true);
    const ok = await task.run(() => call("POST", url("/tracktag/verify"), { body: { tagId: tag.tagId, subdomain: tag.host } }));
    await reload();
    return ok;
  };
  const record = tag.record;
  const root = record ? tag.host.slice(record.name.length + 1) : tag.host;
  const waiting = tag.lifecycle === "waiting_for_dns";
  return (
    <>
      {waiting && <h4>Next: create this DNS record</h4>}
      {tag.domainLost && <p class="note bad">This tag has lost its domain. When the record is right and no other merchant has the domain, “Check now” brings it back.</p>}
      {!waiting && !tag.domainLost && !tag.isConnected && <p class="note bad">The record was right, and is not any more. Until it is corrected, browsers may not find the tag's host.</p>}
      {record && (
        <>
          <p class="dim">
            At the company that manages the DNS of <strong>{root}</strong>. Some of them want the name in full: <code>{tag.host}</code>
          </p>
          <dl class="record">
            {(
              [
                ["Type", record.type],
                ["Name", record.name],
                ["Value", record.value],
                ["TTL", String(record.ttl)],
              ] as const
            ).map(([name, value]) => (
              <div key={name}>
                <dt>{name}</dt>
                <dd>
                  <code>{value}</code>
                  <Copy text={value} what={name.toLowerCase() === "ttl" ? "TTL" : name.toLowerCase()} />
                </dd>
              </div>
            ))}
          </dl>
        </>
      )}
      <div class="actions start">
        {mayChange.value && (
          <Button kind={waiting || !tag.isConnected ? "primary" : undefined} busy={task.busy} onClick={verify}>
            {task.busy ? "Asking DNS…" : "Check now"}
          </Button>
        )}
        {record && <Copy text={message(root, record)} what="all fields" label="Copy as a message" size="full" />}
      </div>
      <div aria-live="polite">
        {!task.busy && (tag.dns || (checked && task.error)) && <Finding tag={tag} error={checked ? task.error : undefined} />}
      </div>
      {waiting && <p class="dim">New records usually work after 5 to 30 minutes. You can leave this page and check later.</p>}
    </>
  );
}

// message is what one sends to whoever manages the DNS of a shop.
function message(root: string, record: NonNullable<Tag["record"]>): string {
  return `Please create this DNS record for ${root}:

Type: ${record.type}
Name: ${record.name} (in full: ${record.name}.${root})
Value: ${record.value}
TTL: ${record.ttl}
`;
}

// Finding says what DNS has: the sentence of the last check, or why it could not be made.
function Finding({ tag, error }: { tag: Tag; error: string | undefined }) {
  const finding = tag.dns;
  const own = error && !/verification (failed|pending)/i.test(error);
  if (own || !finding) return error ? <p class="note bad">{error}</p> : null;
  const tones = { correct: "good", pending: "warn", wrong: "bad", unreachable: "warn" } as const;
  const words = { correct: "DNS is right.", pending: "Not everywhere yet.", wrong: "The record is not right.", unreachable: "DNS could not be asked." };
  return (
    <div class={"note " + tones[finding.verdict]}>
      <p>
        <strong>{words[finding.verdict]}</strong> {finding.detail}
      </p>
      <p class="dim">
        Checked <Time at={finding.checkedAt} distance />
      </p>
    </div>
  );
}
