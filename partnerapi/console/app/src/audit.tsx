// The audit log, for operators: who has changed what.

import { call } from "./api.ts";
import { useGet } from "./resource.ts";
import { address, change, place } from "./route.ts";
import { Button, Empty, Heading, Loaded, Problem, Time, useTask } from "./ui.tsx";

interface Entry {
  id: number;
  at: string;
  actor: { kind: "operator" | "key" | "link" | "service"; name?: string };
  action: string;
  partnerId?: string;
  partnerName?: string;
  merchantId?: string;
  tagId?: string;
  keyId?: string;
  detail?: string;
  reason?: string;
}

const pageSize = 100;

export function Audit() {
  const partner = place.value.query.get("partner") ?? "";
  const at = (before = "") => "/console/operator/audit?" + new URLSearchParams({ limit: String(pageSize), ...(before && { before }), ...(partner && { partnerId: partner }) });
  const log = useGet<{ entries: Entry[] }>(at());
  const more = useTask();
  const older = () =>
    more.run(async () => {
      const entries = log.data!.entries;
      const next = await call<{ entries: Entry[] }>("GET", at(String(entries.at(-1)!.id)));
      log.set({ entries: [...entries, ...next.entries] });
    });
  return (
    <>
      <Heading title="Audit log" />
      {partner && (
        <p>
          Only of partner <code>{partner}</code>. <a href={address("/audit")}>Show all</a>
        </p>
      )}
      <Loaded of={log} rows={10}>
        {({ entries }) =>
          entries.length === 0 ? (
            <Empty title="Nothing was changed yet." />
          ) : (
            <>
              <ul class="rows audit">
                {entries.map((e) => (
                  <li key={e.id} class="row">
                    <span class="dim"><Time at={e.at} /></span>
                    <span>
                      <strong>{words(e.action)}</strong>
                      <small>
                        {e.partnerId && (
                          <button type="button" class="link" onClick={() => change({ partner: e.partnerId! })} title="Show only this partner">
                            {e.partnerName || e.partnerId}
                          </button>
                        )}{" "}
                        {[e.merchantId, e.tagId, e.keyId, e.detail].filter(Boolean).map((text) => (
                          <code key={text}>{text} </code>
                        ))}
                        {e.reason && `“${e.reason}”`}
                      </small>
                    </span>
                    <span class="dim">
                      by {{ operator: "operator", key: "key", link: "link", service: "the service" }[e.actor.kind] ?? e.actor.kind} {e.actor.name && <code>{e.actor.name}</code>}
                    </span>
                  </li>
                ))}
              </ul>
              {more.error && <Problem message={more.error} />}
              {entries.length % pageSize === 0 && <Button busy={more.busy} onClick={older}>Show older entries</Button>}
            </>
          )
        }
      </Loaded>
    </>
  );
}

// words makes a sentence of an action: "merchant.created" is "Merchant created".
function words(action: string): string {
  const text = action.replace(/[._]/g, " ");
  return text[0]!.toUpperCase() + text.slice(1);
}
