// Numbers and times in the format of the viewer. Words are English, so dates are written in digits.

const numbers = new Intl.NumberFormat();
const compact = new Intl.NumberFormat(undefined, { maximumFractionDigits: 1 });
const days = new Intl.DateTimeFormat(undefined, { year: "numeric", month: "2-digit", day: "2-digit" });
const times = new Intl.DateTimeFormat(undefined, { year: "numeric", month: "2-digit", day: "2-digit", hour: "2-digit", minute: "2-digit", second: "2-digit" });
const clock = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const relative = new Intl.RelativeTimeFormat("en", { numeric: "auto" });

export const zone = Intl.DateTimeFormat().resolvedOptions().timeZone || "UTC";

export const number = (n: number) => numbers.format(n);
export const day = (t: string | Date) => days.format(new Date(t));
export const dayAndTime = (t: string | Date) => times.format(new Date(t));
export const timeOfDay = (t: string | Date) => clock.format(new Date(t));

// bytes writes a size with one decimal: 1.5 MB.
export function bytes(n: number): string {
  const units = ["B", "kB", "MB", "GB", "TB", "PB"];
  let unit = 0;
  while (n >= 1000 && unit < units.length - 1) {
    n /= 1000;
    unit++;
  }
  return `${compact.format(n)} ${units[unit]}`;
}

// ago writes the distance of a time from now: "3 hours ago", "in 2 days".
export function ago(t: string | Date, now = Date.now()): string {
  const seconds = (new Date(t).getTime() - now) / 1000;
  const steps: [Intl.RelativeTimeFormatUnit, number][] = [["day", 86400], ["hour", 3600], ["minute", 60]];
  for (const [unit, size] of steps) {
    if (Math.abs(seconds) >= size) return relative.format(Math.trunc(seconds / size), unit);
  }
  return seconds > 0 ? "in a moment" : "just now";
}

// count writes a number with its noun: "1 event", "2 events".
export function count(n: number, noun: string): string {
  return `${number(n)} ${noun}${n === 1 ? "" : "s"}`;
}

// dateOf writes a day of the viewer as in a date field: 2026-11-20.
export function dateOf(t: Date): string {
  const two = (n: number) => String(n).padStart(2, "0");
  return `${t.getFullYear()}-${two(t.getMonth() + 1)}-${two(t.getDate())}`;
}
