// A person's rights: what is held of them, and its erasure with a receipt.

import { useState } from "preact/hooks";
import { call, messageOf, send, url, type Erasure, type Schemas } from "./api.ts";
import { count } from "./format.ts";
import type { Part } from "./merchant.tsx";
import { useEvery, useGet } from "./resource.ts";
import { address, change, place } from "./route.ts";
import { mayChange, mayReadPersons } from "./session.ts";
import { Button, Check, Choice, Confirm, Copy, Empty, Form, Heading, Loaded, Pager, Pill, Problem, say, Section, Text, Time, useTask } from "./ui.tsx";

const kinds = { email: "Email", phone: "Phone number", muid: "muid", deviceId: "Device id" } as const;
type Kind = keyof typeof kinds;

export function Privacy({ merchant }: Part) {
  const receipt = place.value.query.get("receipt");
  return (
    <>
      <Heading level={2} title={`Privacy: ${merchant.name}`}>Privacy</Heading>
      <Person merchant={merchant.merchantId} name={merchant.name} />
      {receipt && <Receipt key={receipt} id={receipt} />}
      <Receipts merchant={merchant.merchantId} />
    </>
  );
}

function Person({ merchant, name }: { merchant: string; name: string }) {
  const [kind, setKind] = useState<Kind>("email");
  const [value, setValue] = useState("");
  const [missing, setMissing] = useState(false);
  const [suppress, setSuppress] = useState(false);
  const [claimed, setClaimed] = useState(false);
  const [confirming, setConfirming] = useState(false);
  const read = useTask();
  const erase = useTask();
  const person = () => ({ merchantId: merchant, [kind]: value.trim(), claimed });
  const named = () => {
    setMissing(!value.trim());
    return Boolean(value.trim());
  };
  const begin = () =>
    erase.run(async () => {
      const made = await call<Erasure>("POST", url("/erasures"), { body: { ...person(), suppress } });
      change({ receipt: made.erasureId });
      setConfirming(false);
      setValue("");
    });
  return (
    <Section level={3} title="A person">
      <p class="dim">When a visitor of the shop asks what is held of them, or asks to be forgotten.</p>
      <Form onSubmit={() => named() && read.run(() => download(person()))}>
        <div class="pair">
          <Choice label="Known by" value={kind} set={setKind} of={Object.entries(kinds)} />
          <Text label={kinds[kind]} error={missing ? "Say who the person is." : undefined} inputMode={kind === "email" ? "email" : kind === "phone" ? "tel" : "text"} value={value} spellcheck={false} set={setValue} />
        </div>
        <Check label="Also take what only claimed links lead to" checked={claimed} set={setClaimed}
          hint="Anyone who knows the tag id can claim that an identifier and a muid belong together. Look at what is held before you erase it: it may be another person's" />
        {mayChange.value && (
          <Check label="When erasing, refuse later events of this person, too" checked={suppress} set={setSuppress}
            hint="The service then keeps hashes of the identifiers, to recognise them" />
        )}
        {read.error && <Problem message={read.error} />}
        <div class="actions start">
          {mayReadPersons.value && <Button type="submit" busy={read.busy}>Download what is held</Button>}
          {mayChange.value && (
            <Button kind="danger" onClick={() => named() && setConfirming(true)}>
              Erase…
            </Button>
          )}
        </div>
      </Form>
      {confirming && (
        <Confirm title="Erase this person?" action="Erase" task={erase} onConfirm={begin} onClose={() => setConfirming(false)}>
          <p>
            All events of <strong>{value.trim()}</strong> at {name} are removed for good, and with them the links between the person's identifiers. This cannot be undone.
          </p>
        </Confirm>
      )}
    </Section>
  );
}

// download saves what is held of a person as a file. An answer without its last line is not complete.
async function download(person: unknown): Promise<void> {
  const answer = await send("POST", url("/personal-data"), { body: person });
  let text: string;
  try {
    text = await answer.text();
  } catch (error) {
    throw new Error("The answer broke off. Try again. " + messageOf(error));
  }
  const last = text.trimEnd().split("\n").at(-1) ?? "";
  const end = JSON.parse(last || "{}") as { type?: string; events?: number; claimedEvents?: number };
  if (end.type !== "end") throw new Error("The answer is not complete. Try again.");
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type: "application/x-ndjson" }));
  link.download = "personal-data.ndjson";
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
  say(`Downloaded: ${count(end.events ?? 0, "event")}${leftOut(end.claimedEvents ?? 0)}`);
}

function leftOut(claimed: number): string {
  return claimed ? `. Not taken: ${count(claimed, "event")} that only claimed links lead to` : "";
}

const steps = ["pending", "removing", "purging", "done"] as const;
const stepNames = { pending: "Waiting", removing: "Removing events", purging: "Removing their bytes from the files", done: "Done" };

function Receipt({ id }: { id: string }) {
  const receipt = useGet<Erasure>(url("/erasures/" + id));
  useEvery(1000, receipt.data?.state !== "done", receipt.reload);
  return (
    <section class="card" aria-label="Receipt of an erasure">
      <Loaded of={receipt}>
        {(e) => (
          <>
            <div class="headline">
              <h3>Erasure</h3>
              <State of={e} />
            </div>
            <p class="facts">
              <span>
                Receipt <code>{e.erasureId}</code> <Copy text={e.erasureId} what="receipt" />
              </span>
            </p>
            <ol class="steps" aria-label="Progress">
              {steps.map((step) => (
                <li key={step} class={steps.indexOf(step) < steps.indexOf(e.state) || e.state === "done" ? "past" : step === e.state ? "now" : ""} aria-current={step === e.state ? "step" : undefined}>
                  {stepNames[step]}
                </li>
              ))}
            </ol>
            <p role="status">
              {e.state === "done"
                ? `Erased: ${count(e.events ?? 0, "event")} and ${count(e.links ?? 0, "link")} between identifiers${leftOut(e.claimedEvents ?? 0)}.`
                : e.lastError
                  ? `Tried ${count(e.attempts, "time")}: ${e.lastError}. It is tried again.`
                  : "This page follows the erasure. You can leave it: the erasure goes on."}
            </p>
            <p class="dim">
              Requested <Time at={e.requestedAt} />
              {e.finishedAt && <>, finished <Time at={e.finishedAt} /></>}
              {e.suppress && ". Later events of the person are refused"}
            </p>
            {e.destinations.map((d) => (
              <p key={d.destinationId} class="dim">
                Destination <code>{d.destinationId}</code> ({d.type}) {askedWords[d.state]}
                {d.reason ? `: ${d.reason}` : ""}
                {d.at && <>, <Time at={d.at} /></>}
              </p>
            ))}
          </>
        )}
      </Loaded>
    </section>
  );
}

const askedWords = { asked: "was asked to erase, too", pending: "is being asked to erase, too", failed: "did not take the request to erase", notPossible: "cannot be asked to erase" };

function State({ of }: { of: Erasure }) {
  if (of.lastError) return <Pill tone="bad">Fails, is tried again</Pill>;
  return <Pill tone={of.state === "done" ? "good" : "accent"}>{of.state === "done" ? "Done" : "Under way"}</Pill>;
}

function Receipts({ merchant }: { merchant: string }) {
  const query = place.value.query;
  const list = useGet<Schemas["ErasureList"]>(url("/erasures", { merchantId: merchant, limit: 10, page: query.get("page") ?? "" }));
  const receipt = query.get("receipt");
  useEvery(2000, Boolean(receipt && !list.data?.erasures.some((e) => e.erasureId === receipt)) || Boolean(list.data?.erasures.some((e) => e.state !== "done")), list.reload);
  return (
    <section aria-labelledby="receipts">
      <h3 id="receipts">Receipts</h3>
      <Loaded of={list}>
        {({ erasures, pagination }) =>
          erasures.length === 0 ? (
            <Empty title="No erasure yet." />
          ) : (
            <>
              <ul class="rows">
                {erasures.map((e) => (
                  <li key={e.erasureId} class="row receipt">
                    <a href={address(place.value.path, { page: query.get("page") ?? "", receipt: e.erasureId })}>
                      <code>{e.erasureId}</code>
                    </a>
                    <State of={e} />
                    <span class="dim end">
                      <Time at={e.requestedAt} />
                    </span>
                  </li>
                ))}
              </ul>
              <Pager of={pagination} noun="receipts" />
            </>
          )
        }
      </Loaded>
    </section>
  );
}
