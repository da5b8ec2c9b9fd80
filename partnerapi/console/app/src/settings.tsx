// The partner's own settings: API keys, the tracking domain, and the limits.

import { useRef, useState } from "preact/hooks";
import { call, Failure, newKey, url, type Config, type IssuedKey, type Key, type MerchantList } from "./api.ts";
import { number } from "./format.ts";
import { Once } from "./merchantsettings.tsx";
import { useGet, type Resource } from "./resource.ts";
import { mayChange, session, signOut } from "./session.ts";
import { Button, Choice, Confirm, Copy, Dialog, Empty, Form, Heading, Loaded, Pairs, Pill, Problem, say, Section, Text, Time, useTask } from "./ui.tsx";

type KeyList = { keys: Key[] };

export function Settings() {
  const keys = useGet<KeyList>(url("/key"));
  return (
    <>
      <Heading title="Settings" />
      <Keys keys={keys.data?.keys} of={keys} />
      <Sessions />
      <TrackingDomain />
      <Limits keys={keys.data?.keys} />
    </>
  );
}

const valid = (key: Key) => !key.revokedAt && (!key.expiresAt || new Date(key.expiresAt).getTime() > Date.now());

function Keys({ keys, of }: { keys: Key[] | undefined; of: Resource<KeyList> }) {
  const [issuing, setIssuing] = useState(false);
  const [issued, setIssued] = useState<IssuedKey>();
  const [revoking, setRevoking] = useState<Key>();
  const past = keys?.filter((k) => !valid(k)) ?? [];
  return (
    <Section title="API keys" aside={mayChange.value && <Button onClick={() => setIssuing(true)}>New key</Button>}>
      <p class="dim">Your programs use them, and people sign in with them. Give each its own, so that you can end one without the others.</p>
      <Loaded of={of}>
        {({ keys }) => (
          <>
            {keys.filter(valid).length === 0 && <Empty title="There is no valid key." />}
            <ul class="rows keys">
              {keys.filter(valid).map((k) => (
                <KeyRow key={k.keyId} of={k} revoke={mayChange.value ? () => setRevoking(k) : undefined} />
              ))}
            </ul>
            {past.length > 0 && (
              <details>
                <summary>Revoked and expired keys ({number(past.length)})</summary>
                <ul class="rows keys">
                  {past.map((k) => (
                    <KeyRow key={k.keyId} of={k} />
                  ))}
                </ul>
              </details>
            )}
          </>
        )}
      </Loaded>
      {issuing && (
        <Issue
          onClose={() => setIssuing(false)}
          done={(key) => {
            setIssuing(false);
            setIssued(key);
            void of.reload();
          }}
        />
      )}
      {issued && <Once title="The new API key" text={issued.apiKey} onClose={() => setIssued(undefined)} />}
      {revoking && (
        <Revoke
          of={revoking}
          onClose={() => setRevoking(undefined)}
          done={() => {
            setRevoking(undefined);
            say("The key is revoked");
            void of.reload();
          }}
        />
      )}
    </Section>
  );
}

function KeyRow({ of, revoke }: { of: Key; revoke?: (() => void) | undefined }) {
  return (
    <li class="row">
      <span>
        <strong>{of.name || "Without a name"}</strong>
        <small><code>{of.keyId}</code></small>
      </span>
      <span>
        <Pill tone="plain">{of.scope === "read" ? "Read only" : "Full"}</Pill> {of.personalData && <Pill tone="plain">Personal data</Pill>} {of.current && <Pill tone="accent">You</Pill>}
        {of.revokedAt && <Pill tone="bad">Revoked</Pill>}
      </span>
      <span class="dim">
        {of.lastUsedAt ? <>Used <Time at={of.lastUsedAt} distance /></> : "Never used"}
        {of.expiresAt && <small>{new Date(of.expiresAt).getTime() > Date.now() ? "Expires" : "Expired"} <Time at={of.expiresAt} distance /></small>}
      </span>
      <span class="end">{revoke && <Button onClick={revoke} aria-label={`Revoke ${of.name || of.keyId}`}>Revoke…</Button>}</span>
    </li>
  );
}

const scopes = {
  full: { label: "Read and change", body: { scope: "full" } },
  read: { label: "Only read", body: { scope: "read" } },
  personal: { label: "Only read, and what is held of a person", body: { scope: "read", personalData: true } },
};

function Issue({ onClose, done }: { onClose: () => void; done: (key: IssuedKey) => void }) {
  const [name, setName] = useState("");
  const [scope, setScope] = useState<keyof typeof scopes>("full");
  const [days, setDays] = useState("");
  const task = useTask();
  const once = useRef(newKey());
  const submit = () =>
    task.run(async () => {
      const body = { name: name.trim(), ...scopes[scope].body, ...(days && { expiresAt: new Date(Date.now() + Number(days) * 86400e3).toISOString().replace(/\.\d+/, "") }) };
      try {
        done(await call<IssuedKey>("POST", url("/key"), { body, headers: { "Idempotency-Key": once.current } }));
      } catch (error) {
        if (!(error instanceof Failure && error.status === 0)) once.current = newKey();
        throw error;
      }
    });
  return (
    <Dialog title="New API key" onClose={onClose}>
      <Form onSubmit={submit}>
        <Text label="What it is for" hint="Such as “Warehouse import” or a person's name." value={name} required maxLength={256} set={setName} />
        <div class="pair">
          <Choice label="It may" value={scope} set={setScope} of={Object.entries(scopes).map(([value, { label }]) => [value, label])} />
          <Choice label="It expires" value={days} set={setDays} of={[["", "Never"], ["30", "In 30 days"], ["90", "In 90 days"], ["365", "In a year"]]} />
        </div>
        {task.error && <Problem message={task.error} />}
        <div class="actions">
          <Button onClick={onClose}>Cancel</Button>
          <Button type="submit" kind="primary" busy={task.busy}>Issue key</Button>
        </div>
      </Form>
    </Dialog>
  );
}

function Revoke({ of, onClose, done }: { of: Key; onClose: () => void; done: () => void }) {
  const [last, setLast] = useState(false);
  const task = useTask();
  const revoke = () =>
    task.run(async () => {
      try {
        await call("DELETE", url("/key/" + of.keyId, { evenLast: last ? "true" : "" }));
      } catch (error) {
        if (error instanceof Failure && error.status === 409) {
          setLast(true);
          throw new Error("This is your last key that can change anything. Issue another one first. If you go on, only the operator of the service can help you.");
        }
        throw error;
      }
      done();
    });
  return (
    <Confirm title={`Revoke ${of.name || of.keyId}?`} action={last ? "Revoke it even so" : "Revoke"} task={task} onConfirm={revoke} onClose={onClose}>
      <p>
        Programs that use this key, and people who signed in with it, are refused from the next request on. {of.current && <strong>You signed in with it: you will be signed out.</strong>}
      </p>
    </Confirm>
  );
}

interface SignedIn {
  sessionId: string;
  current: boolean;
  begunAt: string;
  seenAt: string;
  expiresAt: string;
  keyId?: string;
  keyName?: string;
  linkId?: string;
}

// Sessions shows who is signed in. Who can only read can end only his own session.
function Sessions() {
  const list = useGet<{ sessions: SignedIn[]; total: number }>("/console/sessions");
  const [leaving, setLeaving] = useState(false);
  const task = useTask();
  const end = (s: SignedIn) =>
    task.run(async () => {
      if (s.current) return signOut();
      await call("DELETE", "/console/sessions/" + s.sessionId);
      say("The session has ended");
      await list.reload();
    });
  return (
    <Section title="Who is signed in" aside={mayChange.value && <Button onClick={() => setLeaving(true)}>Sign out everywhere…</Button>}>
      <p class="dim">A session ends 12 hours after it began, and with its key.</p>
      {task.error && <Problem message={task.error} />}
      <Loaded of={list}>
        {({ sessions, total }) => (
          <>
            <ul class="rows keys">
              {sessions.map((s) => (
                <li key={s.sessionId} class="row">
                  <span>
                    <strong>{s.linkId ? "A link" : s.keyName || "A key without a name"}</strong>
                    <small><code>{s.linkId ?? s.keyId}</code></small>
                  </span>
                  <span>{s.current && <Pill tone="accent">You</Pill>}</span>
                  <span class="dim">
                    Began <Time at={s.begunAt} distance />
                    <small>Last used <Time at={s.seenAt} distance /></small>
                  </span>
                  <span class="end">
                    {(mayChange.value || s.current) && <Button busy={task.busy} onClick={() => end(s)} aria-label={`Sign out ${s.current ? "here" : s.keyName || s.linkId || s.keyId}`}>Sign out</Button>}
                  </span>
                </li>
              ))}
            </ul>
            {total > sessions.length && <p class="dim">These are the newest of {number(total)}.</p>}
          </>
        )}
      </Loaded>
      {leaving && (
        <Confirm title="Sign out everywhere?" action="Sign out everywhere" task={task} onConfirm={() => task.run(() => signOut(true))} onClose={() => setLeaving(false)}>
          <p>All sessions of {session.value?.partner?.name} end, yours too, and links that were not used do not work any more. API keys stay valid: revoke those that are in wrong hands.</p>
        </Confirm>
      )}
    </Section>
  );
}

function TrackingDomain() {
  const config = useGet<Config>(url("/config"));
  return (
    <Section title="Tracking domain">
      <Loaded of={config} rows={1}>
        {(c) => (
          <>
            {c.preverifiedEnabled ? (
              <p>
                <code>{c.preverifiedDomain}</code> <Copy text={c.preverifiedDomain} what="tracking domain" />
                <br />
                <span class="dim">Preverified tags of your merchants run on it.</span>
              </p>
            ) : (
              <p class="dim">You have none. With one, merchants need no DNS record: ask the operator of the service to set it up with you.</p>
            )}
            <p class="facts dim">
              <span>Partner <strong>{session.value?.partner?.name}</strong></span>
              <span>Id <code>{c.partnerId}</code> <Copy text={c.partnerId} what="partner id" /></span>
            </p>
          </>
        )}
      </Loaded>
    </Section>
  );
}

function Limits({ keys }: { keys: Key[] | undefined }) {
  const merchants = useGet<MerchantList>(url("/merchant", { limit: 1 }));
  const used: [string, number | undefined, number][] = [
    ["Merchants", merchants.data?.pagination.totalItems, 50_000],
    ["Valid API keys", keys?.filter(valid).length, 100],
  ];
  const others: [string, string][] = [
    ["Requests", `${number(200)} a second, ${number(6000)} at once`],
    ["Requests that change something", `${number(600)} a minute, ${number(1800)} at once`],
    ["Events of a merchant", `${number(10_000)} a second, ${number(100_000)} at once`],
    ["Domains that are not verified yet", number(100)],
    ["Tags with a DNS record", number(20_000)],
    ["Downloads of events at the same time", number(4)],
    ["Live pages and streams at the same time", number(1000)],
  ];
  return (
    <Section title="Limits">
      <p class="dim">These are the usual ones. The operator of the service can set others for you.</p>
      <ul class="meters">
        {used.map(([name, n, of]) => (
          <li key={name}>
            <span>{name}</span>
            <span class="number">{n === undefined ? "…" : number(n)} <span class="dim">of {number(of)}</span></span>
            <meter aria-label={name} min={0} max={of} high={of * 0.9} value={n ?? 0} />
          </li>
        ))}
      </ul>
      <Pairs of={others} />
    </Section>
  );
}
