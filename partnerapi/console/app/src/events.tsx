// A merchant's events: numbers, a chart, the list, and downloads. All follow the filters in the address.

import { useEffect, useState } from "preact/hooks";
import { url, type Merchant, type Summary, type Schemas } from "./api.ts";
import { EventRow } from "./eventrow.tsx";
import { daysAgo, parameters, readFilters, span, type Filters, type Range } from "./filters.ts";
import { count, number, zone } from "./format.ts";
import { TagChoice, type Part } from "./merchant.tsx";
import { useGet } from "./resource.ts";
import { change, place } from "./route.ts";
import { Button, Empty, Heading, Loaded, Pager, Problem } from "./ui.tsx";

export function Events({ merchant }: Part) {
  const filters = readFilters(place.value.query);
  const title = <Heading level={2} title={`Events of ${merchant.name}`}>Events</Heading>;
  if (Object.keys(merchant.tracktags).length === 0) {
    return (
      <>
        {title}
        <Empty title="No tag, no events.">
          <p class="dim">Add a tag first. Its events are shown here as soon as they are recorded.</p>
        </Empty>
      </>
    );
  }
  return (
    <>
      {title}
      <Numbers merchant={merchant} filters={filters} />
      <FilterBar merchant={merchant} filters={filters} />
      <OverTime merchant={merchant} filters={filters} />
      <List merchant={merchant} filters={filters} />
    </>
  );
}

function Numbers({ merchant, filters }: { merchant: Merchant; filters: Filters }) {
  const query = { ...parameters(filters), merchantId: merchant.merchantId, bucket: "day", startDate: daysAgo(29), timezone: zone };
  const summary = useGet<Summary>(url("/events/summary", query));
  return (
    <Loaded of={summary} rows={1}>
      {({ total, counts = [] }) => (
        <dl class="numbers">
          {(
            [
              ["Today", counts.at(-1) ?? 0],
              ["Yesterday", counts.at(-2) ?? 0],
              ["30 days", total],
            ] as const
          ).map(([name, n]) => (
            <div key={name}>
              <dt>{name}</dt>
              <dd>{number(n)}</dd>
            </div>
          ))}
        </dl>
      )}
    </Loaded>
  );
}

const ranges: [Range, string][] = [["24h", "24 hours"], ["7d", "7 days"], ["30d", "30 days"], ["12m", "12 months"]];

function FilterBar({ merchant, filters }: { merchant: Merchant; filters: Filters }) {
  const [open, setOpen] = useState(filters.range === "own" || Boolean(filters.names || filters.tag || filters.bots));
  return (
    <div class="filters">
      <div class="segments" role="group" aria-label="Time">
        {ranges.map(([range, name]) => (
          <button key={range} type="button" aria-pressed={filters.range === range} onClick={() => change({ range: range === "30d" ? "" : range, from: "", to: "" })}>
            {name}
          </button>
        ))}
      </div>
      <Button aria-expanded={open} onClick={() => setOpen(!open)}>Filters</Button>
      {open && (
        <div class="more">
          <label>
            From
            <input type="date" value={filters.from} max={filters.to || undefined} onChange={(event) => change({ from: event.currentTarget.value, range: "" })} />
          </label>
          <label>
            To
            <input type="date" value={filters.to} min={filters.from || undefined} onChange={(event) => change({ to: event.currentTarget.value, range: "" })} />
          </label>
          <label>
            Names
            <input value={filters.names} placeholder="Purchase, AddToCart" autocomplete="off" spellcheck={false} onChange={(event) => change({ names: event.currentTarget.value })} />
          </label>
          <label>
            Tag
            <TagChoice merchant={merchant} tag={filters.tag} />
          </label>
          <label>
            Bots
            <select value={filters.bots} onChange={(event) => change({ bots: event.currentTarget.value })}>
              <option value="">With bots</option>
              <option value="false">Without bots</option>
              <option value="true">Only bots</option>
            </select>
          </label>
        </div>
      )}
    </div>
  );
}

function OverTime({ merchant, filters }: { merchant: Merchant; filters: Filters }) {
  const { startDate, endDate, bucket } = span(filters);
  const query = { ...parameters(filters), merchantId: merchant.merchantId, startDate, endDate, bucket, timezone: zone, by: "event_name" };
  const summary = useGet<Summary>(url("/events/summary", query));
  return (
    <section class="card" aria-label="Events over time">
      <Loaded of={summary} rows={6}>
        {(data) => (
          <LazyChart summary={data} />
        )}
      </Loaded>
    </section>
  );
}

// LazyChart loads the chart's script when the first chart is shown.
function LazyChart({ summary }: { summary: Summary }) {
  const [chart, setChart] = useState<typeof import("./chart.tsx")>();
  const [failed, setFailed] = useState(false);
  useEffect(() => {
    import("./chart.tsx").then(setChart, () => setFailed(true));
  }, []);
  if (failed) return <Problem message="The chart could not be loaded. Load the page again." />;
  return chart ? <chart.Chart summary={summary} /> : <div class="chart" />;
}

function List({ merchant, filters }: { merchant: Merchant; filters: Filters }) {
  const query = place.value.query;
  const { startDate, endDate } = span(filters);
  const chosen = { ...parameters(filters), merchantId: merchant.merchantId, startDate, endDate };
  const sortBy = query.get("sort") === "name" ? "event_name" : "event_time";
  const sortOrder = query.get("order") === "asc" ? "asc" : "desc";
  const list = useGet<Schemas["EventList"]>(url("/events", { ...chosen, sortBy, sortOrder, limit: 20, page: query.get("page") ?? "" }));
  return (
    <section aria-labelledby="listed">
      <div class="headline">
        <h3 id="listed">{list.data ? `${count(list.data.pagination.totalItems, "event")} in this time` : "List"}</h3>
        <label class="inline">
          <span>Order</span>
          <select
            value={`${sortBy === "event_name" ? "name" : "time"} ${sortOrder}`}
            onChange={(event) => {
              const [sort, order] = event.currentTarget.value.split(" ");
              change({ sort: sort === "name" ? "name" : "", order: order === "asc" ? "asc" : "" });
            }}
          >
            <option value="time desc">Newest first</option>
            <option value="time asc">Oldest first</option>
            <option value="name asc">Name, A to Z</option>
            <option value="name desc">Name, Z to A</option>
          </select>
        </label>
        <span class="downloads">
          Download
          {(["csv", "ndjson", "parquet"] as const).map((format) => (
            <a key={format} class="button" download href={url("/events/export", { ...chosen, format })}>
              {{ csv: "CSV", ndjson: "NDJSON", parquet: "Parquet" }[format]}
            </a>
          ))}
        </span>
      </div>
      <Loaded of={list} rows={8}>
        {({ events, pagination }) =>
          events.length === 0 ? (
            <Empty title="No events here.">
              <p class="dim">Nothing matches the filters in this time. Choose a longer time, or fewer filters.</p>
              <Button onClick={() => change({ range: "12m", from: "", to: "", names: "", tag: "", bots: "" })}>Show 12 months without filters</Button>
            </Empty>
          ) : (
            <>
              <div class="rows">
                {events.map((e) => (
                  <EventRow key={e.id} event={e} />
                ))}
              </div>
              <Pager of={pagination} noun="events" />
            </>
          )
        }
      </Loaded>
    </section>
  );
}
