// Where the events of a merchant are sent on to, how far each destination is, and why an event has not arrived.

import { useState } from "preact/hooks";
import { call, url, type Delivery, type DeliveryList, type Destination, type Schemas } from "./api.ts";
import { count, number } from "./format.ts";
import type { Part } from "./merchant.tsx";
import { useEvery, useGet } from "./resource.ts";
import { mayChange } from "./session.ts";
import { Button, Choice, Copy, Empty, Field, Form, Heading, Loaded, Pill, Problem, Text, Time, type Tone, useTask } from "./ui.tsx";

const tones: Record<Destination["status"]["state"], Tone> = { active: "good", failing: "bad", paused: "plain", broken: "bad" };
const words: Record<Destination["status"]["state"], string> = { active: "Active", failing: "Failing", paused: "Paused", broken: "Cannot be used" };
const pathOf = (d: Destination, more = "") => `/merchant/${d.merchantId}/destinations/${d.destinationId}${more}`;

export function Destinations({ merchant }: Part) {
  const path = `/merchant/${merchant.merchantId}/destinations`;
  const list = useGet<Schemas["DestinationList"]>(url(path));
  useEvery(5000, true, list.reload);
  return (
    <>
      <Heading level={2} title={`Delivery of ${merchant.name}`}>Delivery</Heading>
      <p class="dim">Events are sent on to these destinations, at least once, in the order of each visitor. A destination that is down is tried again.</p>
      <Loaded of={list}>
        {({ destinations }) =>
          destinations.length === 0 ? (
            <Empty title="There are no destinations yet." />
          ) : (
            <div class="rows">
              {destinations.map((d) => (
                <One key={d.destinationId} of={d} reload={list.reload} />
              ))}
            </div>
          )
        }
      </Loaded>
      {mayChange.value && <Create path={path} reload={list.reload} />}
    </>
  );
}

function One({ of, reload }: { of: Destination; reload: () => Promise<void> }) {
  const s = of.status;
  const task = useTask();
  const [tested, setTested] = useState<Schemas["TestResult"]>();
  const [event, setEvent] = useState("");
  const run = (what: string, f: () => Promise<unknown>) => () =>
    task.run(async () => {
      await f();
      await reload();
    }, what);
  const test = (send: boolean) => run(send ? "Sent" : "Shown", async () => setTested(await call<Schemas["TestResult"]>("POST", url(pathOf(of, "/test")), { body: { send, eventId: event.trim() || undefined } })));
  const skipped = [
    s.noConsent > 0 && `${number(s.noConsent)} without consent`,
    s.filtered > 0 && `${number(s.filtered)} filtered`,
    s.erased > 0 && `${number(s.erased)} erased`,
  ].filter(Boolean);
  return (
    <details class="row event">
      <summary>
        <Pill tone={tones[s.state]}>{words[s.state]}</Pill>
        <strong>{of.name}</strong>
        <span class="muid">{of.type}, {count(s.delivered, "event")} delivered</span>
        <span class="when dim">{s.lastSuccess ? <Time at={s.lastSuccess} distance /> : "Nothing was sent yet"}</span>
      </summary>
      <div class="json">
        {s.lastError && <p class="note bad">{s.lastError}{s.nextTry && <>. Next try <Time at={s.nextTry} /></>}</p>}
        <p class="facts dim">
          <span>Id <code>{of.destinationId}</code> <Copy text={of.destinationId} what="destination id" /></span>
          <span>Events {of.events ? of.events.join(", ") : "all"}</span>
          {of.filter && <span>Filter <code>{of.filter}</code></span>}
          {skipped.length > 0 && <span>Not sent: {skipped.join(", ")}</span>}
          {s.retries > 0 && <span>{count(s.retries, "event")} tried again</span>}
          {s.deadLetters > 0 && <span>{count(s.deadLetters, "dead letter")}</span>}
        </p>
        {mayChange.value && (
          <p class="facts">
            <Button busy={task.busy} onClick={run("Saved", () => call("PATCH", url(pathOf(of)), { body: { paused: !of.paused } }))}>{of.paused ? "Resume" : "Pause"}</Button>
            <Button busy={task.busy} onClick={test(false)}>Show what would be sent</Button>
            <Button busy={task.busy} onClick={test(true)}>Send a test</Button>
            {s.deadLetters > 0 && <Button busy={task.busy} onClick={run("Sent again", () => call("POST", url(pathOf(of, "/replay")), { body: { deadLetters: true } }))}>Replay dead letters</Button>}
          </p>
        )}
        {task.error && <Problem message={task.error} />}
        {tested && <pre class="code">{JSON.stringify(tested.events, null, 2)}</pre>}
        <Attempts of={of} event={event} setEvent={setEvent} />
      </div>
    </details>
  );
}

const attemptTones: Record<Delivery["state"], Tone> = { delivered: "good", failed: "warn", dead: "bad" };

// Attempts are the last deliveries of a destination; with the id of an event, those of that event.
function Attempts({ of, event, setEvent }: { of: Destination; event: string; setEvent: (id: string) => void }) {
  const list = useGet<DeliveryList>(url(pathOf(of, "/deliveries"), { eventId: event.trim(), limit: 50 }));
  return (
    <>
      <Text label="Id of an event" hint="With it, the buttons above show or send this event, or say why it is not sent. Empty: the last deliveries, and all dead letters." value={event} spellcheck={false} placeholder="evt_…" set={setEvent} />
      <Loaded of={list}>
        {({ deliveries }) =>
          deliveries.length === 0 ? (
            <p class="dim">Nothing is listed.</p>
          ) : (
            <div class="rows">
              {deliveries.map((d) => (
                <details key={d.deliveryId} class="row event">
                  <summary>
                    <Pill tone={attemptTones[d.state]}>{d.status === null ? d.state : String(d.status)}</Pill>
                    <span class="muid">{d.reason ?? count(d.events, "event")}</span>
                    <span class="when dim"><Time at={d.at} distance /></span>
                  </summary>
                  <div class="json">
                    <p class="facts dim"><span>{number(d.durationMs)} ms</span><span>{count(d.events, "event")}: <code>{d.eventIds.join(", ")}</code></span></p>
                    {d.answer && <pre class="code">{d.answer}</pre>}
                  </div>
                </details>
              ))}
            </div>
          )
        }
      </Loaded>
    </>
  );
}

type Type = Schemas["DestinationTypes"]["types"][number];

// valueOf is a setting in JSON, from what was typed: a table has lines such as Booking=Schedule.
function valueOf(type: Type["settings"][number]["type"], text: string) {
  if (type === "flag") return true;
  if (type === "text") return text.trim();
  const lines = text.split("\n").filter((line) => line.trim());
  return Object.fromEntries(lines.map((line) => line.split(/=(.*)/s, 2).map((part) => part.trim())));
}

function Create({ path, reload }: { path: string; reload: () => Promise<void> }) {
  const types = useGet<Schemas["DestinationTypes"]>(url("/destination-types"));
  const [name, setName] = useState("webhook");
  return (
    <Loaded of={types}>
      {({ types: all }) => (
        <div class="card">
          <h3>New destination</h3>
          <Choice label="Type" hint="Filters, mappings and consent are set by the API." value={name} set={setName} of={all.map(({ type }) => [type, type])} />
          {all.filter(({ type }) => type === name).map((type) => <Settings key={type.type} of={type} path={path} reload={reload} />)}
        </div>
      )}
    </Loaded>
  );
}

function Settings({ of, path, reload }: { of: Type; path: string; reload: () => Promise<void> }) {
  const [given, setGiven] = useState<Record<string, string>>({});
  const [made, setMade] = useState("");
  const task = useTask();
  const create = () =>
    task.run(async () => {
      const settings = Object.fromEntries(of.settings.filter(({ name }) => given[name]?.trim()).map(({ name, type }) => [name, valueOf(type, given[name] ?? "")]));
      const secrets = Object.fromEntries(of.secrets.filter(({ name }) => given["secret " + name]).map(({ name }) => [name, given["secret " + name]]));
      const created = await call<Destination>("POST", url(path), { body: { type: of.type, settings, secrets } });
      setMade(created.secrets?.signing ?? "");
      setGiven({});
      await reload();
    });
  const field = (name: string, text: string) => setGiven((before) => ({ ...before, [name]: text }));
  return (
    <Form onSubmit={create}>
      {of.settings.map(({ name, type, required, hint, ...setting }) => (
        <Field key={name} label={name} hint={hint + (type === "table" ? "; each in a line, such as Booking=Schedule" : "")}>
          {(ids) => {
            if (type === "flag") return <input {...ids} type="checkbox" checked={!!given[name]} onInput={(e) => field(name, e.currentTarget.checked ? "true" : "")} />;
            const rest = { ...ids, required, value: given[name] ?? "", onInput: (e: { currentTarget: { value: string } }) => field(name, e.currentTarget.value) };
            return type === "table" ? <textarea {...rest} rows={2} /> : <input {...rest} autocomplete="off" spellcheck={false} placeholder={setting.default} />;
          }}
        </Field>
      ))}
      {of.secrets.map(({ name, required }) => (
        <Text key={name} label={name} hint="A secret: it is never shown again." type="password" value={given["secret " + name] ?? ""} required={required} set={(text) => field("secret " + name, text)} />
      ))}
      {task.error && <Problem message={task.error} />}
      {made && <p class="note">The secret that signs, which is shown only now: <code>{made}</code> <Copy text={made} what="secret" /></p>}
      <Button type="submit" busy={task.busy}>Create</Button>
    </Form>
  );
}
