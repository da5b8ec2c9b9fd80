// What can be changed of a merchant: name, how long events live, who may use identifiers; and its end.

import { useId, useState } from "preact/hooks";
import { call, url, type Merchant, type Schemas } from "./api.ts";
import { bytes, count, day } from "./format.ts";
import type { Part } from "./merchant.tsx";
import { address, go } from "./route.ts";
import { mayChange } from "./session.ts";
import { Button, Code, Confirm, Copy, Dialog, Form, Heading, Problem, say, Section, Text, useTask } from "./ui.tsx";

export function MerchantSettings({ merchant, reload }: Part) {
  return (
    <>
      <Heading level={2} title={`Settings of ${merchant.name}`}>Settings</Heading>
      {!mayChange.value && <p class="note">Your key can only read. Somebody with a full key can change these settings.</p>}
      <fieldset class="stack" disabled={!mayChange.value}>
        <Name key={merchant.name + merchant.domain} merchant={merchant} reload={reload} />
        <Retention key={String(merchant.retentionDays)} merchant={merchant} reload={reload} />
        <Identifiers merchant={merchant} reload={reload} />
        <ClientDetails merchant={merchant} reload={reload} />
        <Delete merchant={merchant} />
      </fieldset>
    </>
  );
}

const patch = (merchant: Merchant, body: object) => call<Merchant>("PATCH", url("/merchant/" + merchant.merchantId), { body });

function Name({ merchant, reload }: Part) {
  const [name, setName] = useState(merchant.name);
  const [domain, setDomain] = useState(merchant.domain ?? "");
  const task = useTask();
  const save = () =>
    task.run(async () => {
      await patch(merchant, { name: name.trim(), domain: domain.trim().toLowerCase() || null });
      await reload();
    }, "Saved");
  return (
    <Form class="card" onSubmit={save}>
      <h3>Name</h3>
      <div class="pair">
        <Text label="Name" value={name} required maxLength={256} set={setName} />
        <Text label="Domain (optional)" hint="Information only: it changes no tag." value={domain} autocapitalize="off" spellcheck={false} placeholder="example.com" set={setDomain} />
      </div>
      {task.error && <Problem message={task.error} />}
      <Button type="submit" busy={task.busy}>Save name</Button>
      <p class="facts dim">
        <span>Id <code>{merchant.merchantId}</code> <Copy text={merchant.merchantId} what="merchant id" /></span>
        <span>Created {day(merchant.createdAt)}</span>
        {merchant.usage && <span>{count(merchant.usage.events, "event")}, {bytes(merchant.usage.bytes)}</span>}
      </p>
    </Form>
  );
}

function Retention({ merchant, reload }: Part) {
  const set = merchant.retentionDays;
  const [kind, setKind] = useState(set === undefined ? "default" : set === null ? "ever" : "days");
  const [days, setDays] = useState(String(set ?? 400));
  const [confirming, setConfirming] = useState(false);
  const task = useTask();
  const group = useId();
  const save = async () => {
    setConfirming(false);
    await task.run(async () => {
      await patch(merchant, { retentionDays: kind === "ever" ? null : Number(days) });
      await reload();
    }, "Saved");
  };
  const choice = (value: string, text: string) => (
    <label>
      <input type="radio" name={group} checked={kind === value} onChange={() => setKind(value)} />
      <span>{text}</span>
    </label>
  );
  return (
    <Form class="card" onSubmit={() => {
      if (kind === "days") setConfirming(true);
      else if (kind === "ever") void save();
    }}>
      <h3>How long events are kept</h3>
      <fieldset class="radios">
        <legend class="unseen">How long events are kept</legend>
        {set === undefined && choice("default", "As the operator of the service has set it for all")}
        {choice("ever", "For ever")}
        {choice("days", "For a number of days")}
      </fieldset>
      {kind === "days" && (
        <Text label="Days" hint="Counted from the time of the event. Older events are removed." type="number" min={1} max={36500} required value={days} set={setDays} />
      )}
      {task.error && <Problem message={task.error} />}
      {kind !== "default" && <Button type="submit" busy={task.busy}>Save retention</Button>}
      {confirming && (
        <Confirm title="Remove older events?" action={`Keep ${count(Number(days), "day")}`} task={task} onConfirm={save} onClose={() => setConfirming(false)}>
          <p>
            Events of {merchant.name} that are older than {count(Number(days), "day")} are removed now, and later ones as they reach that age. This cannot be undone.
          </p>
        </Confirm>
      )}
    </Form>
  );
}

function Identifiers({ merchant, reload }: Part) {
  const [secret, setSecret] = useState<string>();
  const task = useTask();
  const secrets = merchant.secrets ?? [];
  const path = "/merchant/" + merchant.merchantId + "/secret";
  const required = merchant.identityRequiresSecret === true;
  const change = (f: () => Promise<unknown>) =>
    task.run(async () => {
      await f();
      await reload();
    });
  return (
    <Section level={3} title="Who may use identifiers">
      <p class="dim">
        With a secret, only the shop's backend can use emails, phone numbers and device ids on the tag host. Create a secret, give it to the backend, then require it.
      </p>
      {secrets.length > 0 && (
        <ul class="rows">
          {secrets.map((s) => (
            <li key={s.secretId} class="row receipt">
              <code>{s.secretId}</code>
              <span class="dim">created {day(s.createdAt)}</span>
              <span class="end">
                <Button onClick={() => change(() => call("DELETE", url(path + "/" + s.secretId)))} aria-label={`Delete secret ${s.secretId}`}>Delete</Button>
              </span>
            </li>
          ))}
        </ul>
      )}
      {task.error && <Problem message={task.error} />}
      <div class="actions start">
        {secrets.length < 2 && (
          <Button busy={task.busy} onClick={() => change(async () => setSecret((await call<Schemas["NewSecret"]>("POST", url(path))).secret))}>
            Create a secret
          </Button>
        )}
        {(required || secrets.length > 0) && (
          <Button busy={task.busy} onClick={() => change(() => patch(merchant, { identityRequiresSecret: !required }))}>
            {required ? "Do not require a secret" : "Require a secret"}
          </Button>
        )}
      </div>
      <p class="dim">{required ? "A secret is required." : "A secret is not required."}</p>
      {secret && <Once title="The secret" text={secret} onClose={() => setSecret(undefined)} />}
    </Section>
  );
}

function ClientDetails({ merchant, reload }: Part) {
  const task = useTask();
  const on = merchant.deliverClientDetails === true;
  return (
    <section class="card">
      <h3>What ad platforms learn of browsers</h3>
      <p class="dim">
        Ad platforms recognise more visitors by the address and the user agent of the browser. They get them only of visitors who agree to ad storage and ad user data. The service keeps
        them encrypted for at most 72 hours.
      </p>
      {task.error && <Problem message={task.error} />}
      <div class="actions start">
        <Button
          busy={task.busy}
          onClick={() =>
            task.run(async () => {
              await patch(merchant, { deliverClientDetails: !on });
              await reload();
            })
          }
        >
          {on ? "Do not send them" : "Send them"}
        </Button>
      </div>
      <p class="dim">{on ? "They are sent." : "They are not sent."}</p>
    </section>
  );
}

// Once shows a text that cannot be shown again.
export function Once({ title, text, onClose }: { title: string; text: string; onClose: () => void }) {
  return (
    <Dialog title={title} onClose={onClose}>
      <p>Copy it now: the service keeps only a hash of it, and cannot show it again.</p>
      <Code text={text} label={title} what={title.toLowerCase()} />
      <div class="actions">
        <Button kind="primary" onClick={onClose}>I have it</Button>
      </div>
    </Dialog>
  );
}

function Delete({ merchant }: { merchant: Merchant }) {
  const [open, setOpen] = useState(false);
  const [typed, setTyped] = useState("");
  const task = useTask();
  const close = () => {
    setOpen(false);
    setTyped("");
    task.clear();
  };
  return (
    <Section level={3} title="Delete the merchant">
      <p class="dim">Its tags stop working at once, its domain is free for others, and its events are removed. This cannot be undone.</p>
      <Button kind="danger" onClick={() => setOpen(true)}>Delete…</Button>
      {open && (
        <Dialog title={`Delete ${merchant.name}?`} onClose={close}>
          <Form onSubmit={() => {
            if (typed !== merchant.name) return;
            void task.run(async () => {
              await call("DELETE", url("/merchant/" + merchant.merchantId));
              say(`${merchant.name} is deleted`);
              go(address("/merchants"));
            });
          }}>
            <p>
              {merchant.usage && merchant.usage.events > 0 && <>It has {count(merchant.usage.events, "event")}. </>}
              Its tags stop working at once. This cannot be undone.
            </p>
            <Text label={`Type ${merchant.name} to confirm`} value={typed} spellcheck={false} set={setTyped} />
            {task.error && <Problem message={task.error} />}
            <div class="actions">
              <Button onClick={close}>Cancel</Button>
              <Button type="submit" kind="danger" busy={task.busy} disabled={typed !== merchant.name}>Delete</Button>
            </div>
          </Form>
        </Dialog>
      )}
    </Section>
  );
}
