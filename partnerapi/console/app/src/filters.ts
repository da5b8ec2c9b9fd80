// Which events a page shows: the filters in its address, and the parameters that they are in the API.

import { dateOf } from "./format.ts";

export type Range = "24h" | "7d" | "30d" | "12m" | "own";

export interface Filters {
  range: Range;
  from: string; // a day of the viewer, such as 2026-11-20, in the range "own"
  to: string;
  names: string; // separated by commas
  tag: string;
  bots: string; // "true", "false" or ""
}

export function readFilters(query: URLSearchParams): Filters {
  const get = (name: string) => query.get(name) ?? "";
  const from = get("from");
  const to = get("to");
  const range = from || to ? "own" : ((["24h", "7d", "12m"].find((r) => r === get("range")) as Range) ?? "30d");
  return { range, from, to, names: get("names"), tag: get("tag"), bots: get("bots") };
}

// span returns the first and the last moment of a range. Without an end it goes on until now.
export function span(f: Filters, now = new Date()): { startDate: string; endDate: string; bucket: "hour" | "day" | "month" } {
  const ago = (days: number) => new Date(now.getFullYear(), now.getMonth(), now.getDate() - days);
  switch (f.range) {
    case "24h": {
      const start = new Date(now.getTime() - 23 * 3600 * 1000);
      start.setMinutes(0, 0, 0);
      return { startDate: iso(start), endDate: "", bucket: "hour" };
    }
    case "7d":
      return { startDate: iso(ago(6)), endDate: "", bucket: "day" };
    case "12m":
      return { startDate: iso(new Date(now.getFullYear(), now.getMonth() - 11, 1)), endDate: "", bucket: "month" };
    case "own": {
      const start = parse(f.from);
      const end = parse(f.to);
      if (end) end.setDate(end.getDate() + 1);
      const days = start ? ((end ?? now).getTime() - start.getTime()) / 86400e3 : Infinity;
      return {
        startDate: start ? iso(start) : "",
        endDate: end ? iso(new Date(end.getTime() - 1000)) : "",
        bucket: days <= 2 ? "hour" : days <= 92 ? "day" : "month",
      };
    }
  }
  return { startDate: iso(ago(29)), endDate: "", bucket: "day" };
}

// parse reads a day of the viewer.
function parse(text: string): Date | undefined {
  const [, year, month, day] = /^(\d{4,6})-(\d{2})-(\d{2})$/.exec(text) ?? [];
  return year ? new Date(Number(year), Number(month) - 1, Number(day)) : undefined;
}

function iso(t: Date): string {
  return t.toISOString().replace(/\.\d+Z$/, "Z");
}

// parameters returns the filters other than the range, as the API has them.
export function parameters(f: Filters): Record<string, string> {
  return { events: f.names.replace(/\s/g, ""), tagId: f.tag, isBot: f.bots };
}

// daysAgo returns the day of the viewer that was some days ago, as in a date field.
export function daysAgo(days: number, now = new Date()): string {
  return dateOf(new Date(now.getFullYear(), now.getMonth(), now.getDate() - days));
}
