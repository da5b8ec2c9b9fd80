// What operators see of the service.

import { useState } from "preact/hooks";
import { ago, bytes, count, day, number } from "./format.ts";
import { useEvery, useGet } from "./resource.ts";
import { typeNames } from "./status.ts";
import { Button, Empty, Heading, Loaded, Pairs, Pill, Section, Time, type Tone } from "./ui.tsx";

interface OverviewData {
  now: string;
  version: string;
  startedAt: string;
  ready: boolean;
  notReady?: string;
  partners: { total: number; countedAt: string; items: Partner[] };
  suspended: { total: number; items: { kind: "partner" | "merchant" | "tag"; name: string; partnerId: string; merchantId?: string; tagId?: string }[] };
  hosts: { total: number; due: number; notDns: number; items: Host[] };
  disk: { reserveBytes: number; parts: { part: string; freeBytes: number; totalBytes: number; usedBytes: number }[] };
  rates: { seconds: number; events: number; eventsPerSecond: number; refused: number; refusedPerSecond: number; causes: { cause: string; count: number }[] };
  backups: { intervalSeconds: number; lastSuccessAt: string | null; ageSeconds: number | null; lastFailureAt: string | null; lastError?: string; failures: number } | null;
}

interface Partner {
  id: string;
  name: string;
  createdAt: string;
  suspended: boolean;
  preverifiedDomain: string;
  merchants: number;
  events: number | null;
  bytes: number | null;
}

interface Host {
  host: string;
  kind: "own" | "server-side" | "preverified";
  partnerId?: string;
  dns: { connected: boolean; detail?: string; checkedAt: string | null } | null;
  certificate: { status: "none" | "pending" | "valid" | "failed"; detail?: string; notAfter: string | null; nextTry: string | null; due: boolean } | null;
}

export function Overview() {
  const overview = useGet<OverviewData>("/console/operator/overview");
  useEvery(10_000, true, overview.reload);
  return (
    <>
      <div class="headline">
        <Heading title="Overview" />
        {overview.data && <Pill tone={overview.data.ready ? "good" : "bad"}>{overview.data.ready ? "Accepting events" : "Not accepting events"}</Pill>}
      </div>
      <Loaded of={overview} rows={8}>
        {(o) => (
          <>
            {!o.ready && <p class="note bad">{o.notReady}</p>}
            <Figures of={o} />
            <div class="halves">
              <Disk of={o.disk} />
              <Backups of={o.backups} />
            </div>
            <Refusals of={o.rates} />
            <Suspended of={o} />
            <Hosts of={o.hosts} />
            <Partners of={o.partners} />
            <p class="dim">
              mtagd {o.version}, started <Time at={o.startedAt} distance />
            </p>
          </>
        )}
      </Loaded>
    </>
  );
}

const rate = new Intl.NumberFormat(undefined, { maximumFractionDigits: 1 });

// last writes the time that rates are of.
function last(seconds: number): string {
  return seconds >= 120 ? `the last ${count(Math.round(seconds / 60), "minute")}` : `the last ${count(seconds, "second")}`;
}

function Figures({ of: { rates, hosts, partners } }: { of: OverviewData }) {
  const figures: [string, string, string][] = [
    ["Events a second", rate.format(rates.eventsPerSecond), last(rates.seconds)],
    ["Refused a second", rate.format(rates.refusedPerSecond), last(rates.seconds)],
    ["Partners", number(partners.total), count(partners.items.reduce((sum, p) => sum + p.merchants, 0), "merchant")],
    ["Certificates due", number(hosts.due), `of ${count(hosts.total, "host")}`],
  ];
  return (
    <dl class="numbers four">
      {figures.map(([name, n, hint]) => (
        <div key={name}>
          <dt>{name}</dt>
          <dd>{n}</dd>
          <dd class="hint">{hint}</dd>
        </div>
      ))}
    </dl>
  );
}

function Disk({ of }: { of: OverviewData["disk"] }) {
  const disks = Map.groupBy(of.parts, (p) => p.totalBytes); // parts on disks of the same size are on one disk, as a rule
  return (
    <Section title="Disk">
      <ul class="meters">
        {[...disks.values()].map((parts) => {
          const { freeBytes: free, totalBytes: total } = parts[0]!;
          return (
            <li key={total}>
              <span>{disks.size > 1 ? parts.map((p) => p.part).join(", ") : "Data directory"}</span>
              <span class="number">
                {bytes(free)} <span class="dim">free of {bytes(total)}</span>
              </span>
              <meter aria-label={`Used space of the disk with ${parts.map((p) => p.part).join(", ")}`} min={0} max={total} high={Math.max(0, total - 3 * of.reserveBytes)} value={total - free} />
            </li>
          );
        })}
      </ul>
      <Pairs of={of.parts.map((p) => [p.part, bytes(p.usedBytes)])} />
      <p class="dim">Below {bytes(of.reserveBytes)} of free space, events are refused.</p>
    </Section>
  );
}

function Backups({ of }: { of: OverviewData["backups"] }) {
  if (!of) {
    return (
      <Section title="Backups">
        <p class="note warn">
          <strong>The service makes none by itself.</strong> Start it with <code class="whole">--backup-to</code>, or make sure that something else does.
        </p>
      </Section>
    );
  }
  const old = of.ageSeconds === null || of.ageSeconds > 3 * of.intervalSeconds;
  const tone: Tone = of.lastError ? "bad" : old ? "warn" : "good";
  return (
    <Section title="Backups" aside={<Pill tone={tone}>{of.lastError ? "Failed" : old ? "Old" : "Up to date"}</Pill>}>
      <p>
        {of.lastSuccessAt ? (
          <>
            The last good one is from <Time at={of.lastSuccessAt} distance />.
          </>
        ) : (
          "There is no good one yet."
        )}
      </p>
      {of.lastFailureAt && (
        <p class={of.lastError ? "note bad" : "dim"}>
          The last failure was <Time at={of.lastFailureAt} distance />. {of.lastError} {of.failures > 1 && `${number(of.failures)} have failed since the start.`}
        </p>
      )}
    </Section>
  );
}

function Refusals({ of }: { of: OverviewData["rates"] }) {
  if (of.causes.length === 0) return null;
  return (
    <Section title="Refused" aside={<span class="dim">{last(of.seconds)}</span>}>
      <Pairs of={of.causes.map((c) => [c.cause.replace(/_/g, " "), number(c.count)])} />
    </Section>
  );
}

function Suspended({ of }: { of: OverviewData }) {
  if (of.suspended.total === 0) return null;
  const name = (id: string) => of.partners.items.find((p) => p.id === id)?.name ?? id;
  return (
    <Section title="Suspended" aside={<Pill tone="bad">{number(of.suspended.total)}</Pill>}>
      <ul class="rows">
        {of.suspended.items.map((s) => (
          <li key={s.tagId ?? s.merchantId ?? s.partnerId} class="row receipt">
            <Pill tone="plain">{{ partner: "Partner", merchant: "Merchant", tag: "Tag" }[s.kind]}</Pill>
            <strong>{s.kind === "tag" ? (typeNames[s.name as keyof typeof typeNames] ?? s.name) : s.name}</strong>
            {s.kind !== "partner" && <span class="dim">of {name(s.partnerId)}</span>}
            <code class="end">{s.tagId ?? s.merchantId ?? s.partnerId}</code>
          </li>
        ))}
      </ul>
    </Section>
  );
}

// Hosts lists those that need somebody. The others are there when they are asked for.
function Hosts({ of }: { of: OverviewData["hosts"] }) {
  const [all, setAll] = useState(false);
  const trouble = (h: Host) => h.certificate?.due || h.certificate?.status === "failed" || h.dns?.connected === false;
  const items = all ? of.items : of.items.filter(trouble);
  return (
    <Section title="Hosts" aside={of.items.length > 0 && <Button onClick={() => setAll(!all)} aria-pressed={all}>{all ? "Show fewer" : `Show all ${number(of.total)}`}</Button>}>
      {items.length === 0 && <p class="dim">No host needs anybody: DNS leads here, and no certificate is due.</p>}
      {items.length > 0 && (
        <ul class="rows hosts">
          {items.map((h) => (
            <li key={h.host} class="row">
              <span>
                <strong>{h.host}</strong>
                <small>{{ own: "The service's own", "server-side": "Server-side", preverified: "Tracking domain" }[h.kind]}</small>
              </span>
              <span>
                {h.dns && <Pill tone={h.dns.connected ? "good" : "bad"}>{h.dns.connected ? "DNS leads here" : "DNS leads elsewhere"}</Pill>}
                {h.dns && !h.dns.connected && h.dns.detail && <small>{h.dns.detail}</small>}
              </span>
              <span>
                <CertificateState of={h.certificate} />
              </span>
            </li>
          ))}
        </ul>
      )}
      {all && of.total > of.items.length && <p class="dim">The first {number(of.items.length)} are shown.</p>}
    </Section>
  );
}

function CertificateState({ of }: { of: Host["certificate"] }) {
  if (!of) return <span class="dim">No TLS here</span>;
  const tone: Tone = of.status === "failed" ? "bad" : of.due ? "warn" : of.status === "valid" ? "good" : "plain";
  return (
    <>
      <Pill tone={tone}>{{ none: "No certificate", pending: "Being ordered", valid: "Certificate valid", failed: "Certificate failed" }[of.status]}</Pill>
      <small>
        {of.notAfter && `until ${day(of.notAfter)} (${ago(of.notAfter)}). `}
        {of.detail} {of.nextTry && `Next try ${ago(of.nextTry)}.`}
      </small>
    </>
  );
}

function Partners({ of }: { of: OverviewData["partners"] }) {
  return (
    <Section title="Partners" aside={<span class="dim">counted <Time at={of.countedAt} distance /></span>}>
      {of.items.length === 0 ? (
        <Empty title="No partner yet.">
          <p class="dim">
            Add one with <code>mtagd partner add --name NAME</code>
          </p>
        </Empty>
      ) : (
        <div class="scroll" tabIndex={0} role="region" aria-label="Table of partners">
          <table>
            <thead>
              <tr>
                <th scope="col">Partner</th>
                <th scope="col">Merchants</th>
                <th scope="col">Events</th>
                <th scope="col">Size</th>
                <th scope="col">Created</th>
              </tr>
            </thead>
            <tbody>
              {of.items.map((p) => (
                <tr key={p.id}>
                  <th scope="row">
                    {p.name} {p.suspended && <Pill tone="bad">Suspended</Pill>}
                    <small>
                      <code>{p.id}</code> {p.preverifiedDomain}
                    </small>
                  </th>
                  <td>{number(p.merchants)}</td>
                  <td>{p.events === null ? "–" : number(p.events)}</td>
                  <td>{p.bytes === null ? "–" : bytes(p.bytes)}</td>
                  <td>{day(p.createdAt)}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
    </Section>
  );
}
