// Events over time, by name: stacked bars, and the same numbers as a table.

import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import uPlot from "uplot";
import type { Summary } from "./api.ts";
import { number, zone } from "./format.ts";
import { change } from "./route.ts";

// shown is how many names have a colour of their own.
const shown = 6;

interface Series {
  name: string;
  total: number;
  counts: number[];
  color: string; // the custom property of the style
}

export function Chart({ summary }: { summary: Summary }) {
  const series = useMemo(() => seriesOf(summary), [summary]);
  const buckets = summary.buckets ?? [];
  const [at, setAt] = useState<number | null>(null);
  const box = useRef<HTMLDivElement>(null);

  useEffect(() => {
    const element = box.current;
    if (!element || buckets.length === 0) return;
    const dark = matchMedia("(prefers-color-scheme: dark)");
    let plot: uPlot | undefined;
    const draw = () => {
      plot?.destroy();
      plot = new uPlot(options(element, summary, series, setAt), stack(buckets, series), element);
    };
    const fit = new ResizeObserver(() => plot?.setSize({ width: element.clientWidth, height: element.clientHeight }));
    draw();
    fit.observe(element);
    dark.addEventListener("change", draw);
    return () => {
      fit.disconnect();
      dark.removeEventListener("change", draw);
      plot?.destroy();
    };
  }, [summary]);

  const name = (i: number) => label(buckets[i]!, summary.bucket);
  return (
    <figure class="overtime">
      <figcaption>
        <ul class="legend">
          {series.map((s) => (
            <li key={s.name}>
              <i class={s.color} aria-hidden="true" />
              {s.name === otherNames ? s.name : <button type="button" class="link" onClick={() => change({ names: s.name })} title={`Show only ${s.name}`}>{s.name}</button>}{" "}
              <span class="number">{number(at === null ? s.total : (s.counts[at] ?? 0))}</span>
            </li>
          ))}
        </ul>
        <span class="moment dim">{at === null ? `${number(summary.total)} events` : name(at)}</span>
      </figcaption>
      <div class="chart" ref={box} aria-hidden="true" />
      <details>
        <summary>As a table</summary>
        <div class="scroll" tabIndex={0} role="region" aria-label="Events over time as a table">
          <table>
            <thead>
              <tr>
                <th scope="col">{summary.bucket === "hour" ? "Hour" : summary.bucket === "month" ? "Month" : "Day"}</th>
                {series.map((s) => (
                  <th key={s.name} scope="col">{s.name}</th>
                ))}
                <th scope="col">All</th>
              </tr>
            </thead>
            <tbody>
              {buckets.map((bucket, i) => (
                <tr key={bucket}>
                  <th scope="row">{name(i)}</th>
                  {series.map((s) => (
                    <td key={s.name}>{number(s.counts[i] ?? 0)}</td>
                  ))}
                  <td>{number(summary.counts?.[i] ?? 0)}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      </details>
    </figure>
  );
}

const otherNames = "Other names";

function seriesOf(summary: Summary): Series[] {
  const groups = summary.groups ?? [];
  const series = groups.slice(0, shown).map((g, i) => ({ name: g.event_name ?? "", total: g.total, counts: g.counts ?? [], color: "s" + (i + 1) }));
  const rest = [...groups.slice(shown), summary.other ?? { total: 0 }];
  const total = rest.reduce((sum, g) => sum + g.total, 0);
  if (total > 0) {
    const counts = (summary.buckets ?? []).map((_, i) => rest.reduce((sum, g) => sum + (g.counts?.[i] ?? 0), 0));
    series.push({ name: otherNames, total, counts, color: "s0" });
  }
  return series;
}

// stack adds up the series: the first one drawn is the sum of all, and the others cover it from below.
function stack(buckets: string[], series: Series[]): uPlot.AlignedData {
  const x = buckets.map((_, i) => i);
  const sums = x.map(() => 0);
  const layers = series.map((s) => x.map((i) => (sums[i] = sums[i]! + (s.counts[i] ?? 0))));
  return [x, ...layers.reverse()] as uPlot.AlignedData;
}

function options(element: HTMLElement, summary: Summary, series: Series[], hover: (i: number | null) => void): uPlot.Options {
  const style = getComputedStyle(element);
  const color = (name: string) => style.getPropertyValue("--" + name).trim();
  const font = "12px " + style.fontFamily;
  const axis = { stroke: color("dim"), font, ticks: { show: false } };
  const names = (summary.buckets ?? []).map((b) => label(b, summary.bucket, true));
  const max = Math.max(1, ...(summary.counts ?? []));
  return {
    width: element.clientWidth,
    height: element.clientHeight,
    padding: [12, 0, 0, 0],
    legend: { show: false },
    cursor: { y: false, drag: { x: false, y: false }, points: { show: false } },
    scales: { x: { time: false, range: [-0.6, names.length - 0.4] }, y: { range: [0, max * 1.05] } },
    axes: [
      { ...axis, grid: { show: false }, size: 28, space: 70, incrs: [1, 2, 3, 5, 7, 10, 14, 30, 60, 120, 365, 1000], values: (_, at) => at.map((i) => names[i] ?? "") },
      { ...axis, grid: { stroke: color("line"), width: 1 }, size: (_, values) => 16 + 8 * Math.max(1, ...(values ?? []).map((v) => v.length)), space: 44, incrs: steps, values: (_, at) => at.map((n) => number(n)) },
    ],
    series: [
      {},
      ...[...series].reverse().map((s) => ({ fill: color(s.color), width: 0, points: { show: false }, paths: uPlot.paths.bars!({ size: [0.72, 48], radius: 0 }) })),
    ],
    hooks: { setCursor: [(u) => hover(u.cursor.idx ?? null)] },
  };
}

// steps are the distances of the lines: whole numbers only, since there is no half event.
const steps = [1, 2, 5].flatMap((n) => Array.from({ length: 15 }, (_, power) => n * 10 ** power)).sort((a, b) => a - b);

const formats = {
  hour: { hour: "2-digit", minute: "2-digit" },
  day: { day: "2-digit", month: "2-digit" },
  month: { month: "2-digit", year: "numeric" },
} as const;
const long = {
  hour: { day: "2-digit", month: "2-digit", hour: "2-digit", minute: "2-digit" },
  day: { weekday: undefined, day: "2-digit", month: "2-digit", year: "numeric" },
  month: formats.month,
} as const;

function label(bucket: string, size: Summary["bucket"] = "day", short = false): string {
  return new Intl.DateTimeFormat(undefined, { ...(short ? formats : long)[size], timeZone: zone }).format(new Date(bucket));
}
