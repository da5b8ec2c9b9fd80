// What was refused lately, and why; and a try of an event without recording it.

import { useState } from "preact/hooks";
import { call, url, type Finding, type Trial, type Schemas } from "./api.ts";
import { count, number } from "./format.ts";
import { JSONTree } from "./json.tsx";
import { TagChoice, type Part } from "./merchant.tsx";
import { useGet } from "./resource.ts";
import { place } from "./route.ts";
import { typeNames } from "./status.ts";
import { Button, Choice, Empty, Field, Form, Heading, Loaded, Pill, Problem, Section, Time, type Tone, useTask } from "./ui.tsx";

export function Refused({ merchant }: Part) {
  const tag = place.value.query.get("tag") ?? "";
  const list = useGet<Schemas["RefusedList"]>(url("/debug/refused", { merchantId: merchant.merchantId, tagId: tag, limit: 100 }));
  const tags = Object.entries(merchant.tracktags);
  return (
    <>
      <Heading level={2} title={`Refused events of ${merchant.name}`}>Refused</Heading>
      <p class="dim">Events that the tag host did not take, or that look odd. Personal fields are not kept. Entries are gone after a day, or when the service restarts.</p>
      <div class="headline">
        {tags.length > 1 && (
          <label class="inline">
            <span>Tag</span>
            <TagChoice merchant={merchant} tag={tag} />
          </label>
        )}
        <Button onClick={list.reload}>Look again</Button>
      </div>
      <Loaded of={list} rows={4}>
        {({ refused, since, dropped }) => (
          <>
            {refused.length === 0 ? (
              <Empty title="Nothing was refused.">
                <p class="dim">{since && <>Since <Time at={since} />.</>}</p>
              </Empty>
            ) : (
              <div class="rows">
                {refused.map((r, i) => (
                  <Entry key={r.tagId + r.code + r.event + r.path + i} of={r} />
                ))}
              </div>
            )}
            {dropped > 0 && <p class="dim">{number(dropped)} more were refused, but there was no room to keep them.</p>}
          </>
        )}
      </Loaded>
      {tags.length > 0 && <Try tags={tags.map(([type, t]) => ({ id: t!.tagId, name: typeNames[type as keyof typeof typeNames] }))} />}
    </>
  );
}

function Entry({ of }: { of: Schemas["Refused"] }) {
  const odd = of.status < 400;
  return (
    <details class="row event">
      <summary>
        <Pill tone={odd ? "warn" : "bad"}>{odd ? "Odd" : String(of.status)}</Pill>
        <strong>{of.event || "Without a name"}</strong>
        <span class="muid">{of.message}</span>
        <span class="when dim">
          {of.count > 1 && <>{number(of.count)} times, </>}
          <Time at={of.lastAt} distance />
        </span>
      </summary>
      <div class="json">
        <p>
          {of.reason} {of.suggestion && <>Did you mean <strong>{of.suggestion}</strong>?</>}
        </p>
        <p class="facts dim">
          {of.path && <span>Place <code>{of.path}</code></span>}
          {of.origin && <span>From <code>{of.origin}</code></span>}
          <span>First <Time at={of.at} /></span>
          <span>{count(of.count, "time")}</span>
        </p>
        {of.sample && (
          <>
            <p class="dim">Its fields, without their values:</p>
            <JSONTree value={of.sample} />
          </>
        )}
      </div>
    </details>
  );
}

const example = `{
  "muid": "visitor-1",
  "event": "Purchase",
  "value": 89,
  "currency": "EUR",
  "products": [{ "id": "shoe-1", "price": 89, "quantity": 1 }]
}`;

function Try({ tags }: { tags: { id: string; name: string }[] }) {
  const [tag, setTag] = useState(tags[0]!.id);
  const [text, setText] = useState(example);
  const [answer, setAnswer] = useState<Trial>();
  const task = useTask();
  const submit = () =>
    task.run(async () => {
      setAnswer(undefined);
      setAnswer(await call<Trial>("POST", url("/debug/mark", { tagId: tag }), { text }));
    });
  return (
    <Section level={3} title="Try an event">
      <p class="dim">See what the tag host would answer, and what could be better. Nothing is recorded.</p>
      <Form onSubmit={submit}>
        {tags.length > 1 && <Choice label="Tag" value={tag} set={setTag} of={tags.map((t) => [t.id, t.name])} />}
        <Field label="Event as JSON" hint="What your page or backend sends to the tag host, as it is. An array is a batch.">
          {(ids) => <textarea {...ids} class="mono" rows={8} spellcheck={false} autocapitalize="off" value={text} onInput={(event) => setText(event.currentTarget.value)} />}
        </Field>
        <Button type="submit" kind="primary" busy={task.busy}>Try</Button>
      </Form>
      <div aria-live="polite">
        {task.error && <Problem message={task.error} />}
        {answer && <Verdict of={answer} />}
      </div>
    </Section>
  );
}

function Verdict({ of }: { of: Trial }) {
  const tones: Record<Finding["level"], Tone> = { error: "bad", warning: "warn", info: "plain" };
  return (
    <>
      <p class={"note " + (of.status < 400 ? "good" : "bad")}>
        <strong>{of.status < 400 ? ("results" in of.answer ? `${of.answer.accepted} of ${of.answer.results.length} would be recorded.` : "It would be recorded.") : "It would be refused."}</strong>{" "}
        {"message" in of.answer && `The answer is ${of.status}: ${of.answer.message}`}
      </p>
      {of.findings.length === 0 ? (
        <p>There is nothing to improve.</p>
      ) : (
        <ul class="findings">
          {of.findings.map((f, i) => (
            <li key={i}>
              <Pill tone={tones[f.level]}>{{ error: "Error", warning: "Warning", info: "Hint" }[f.level]}</Pill>
              <span>
                {f.path && <code>{f.path}</code>} {f.message} {f.suggestion && <>Better: <code>{f.suggestion}</code></>}
              </span>
            </li>
          ))}
        </ul>
      )}
    </>
  );
}
