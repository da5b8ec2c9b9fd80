// The address of a page is its state: every page, filter and page number has one. place follows the address.

import { signal } from "@preact/signals";
import { useLayoutEffect } from "preact/hooks";

export interface Place {
  path: string; // below /console, such as /merchants
  query: URLSearchParams;
}

const base = "/console";

function read(): Place {
  const path = location.pathname.slice(base.length).replace(/\/+$/, "");
  return { path: path || "/", query: new URLSearchParams(location.search) };
}

export const place = signal<Place>(read());

// moved is true once the page has changed without a load: from then on, the focus follows to the new heading.
let moved = false;

// focusHeading lets the focus follow to the heading of what is shown next.
export function focusHeading(): void {
  moved = true;
}

// address returns the URL of a path below /console. Parameters that are empty are left out.
export function address(path: string, query: Record<string, string | undefined> = {}): string {
  const set = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) if (value) set.set(name, value);
  const text = set.toString();
  return base + path + (text && "?" + text);
}

// go shows a page. With replace, the back button does not lead to the current one.
export function go(url: string, replace = false): void {
  if (url === location.pathname + location.search) return;
  history[replace ? "replaceState" : "pushState"](null, "", url);
  follow();
}

// change sets parameters of the current address. The page number starts again, unless it is among them.
export function change(query: Record<string, string | undefined>, replace = false): void {
  const set: Record<string, string | undefined> = Object.fromEntries(place.value.query);
  delete set.page;
  go(address(place.value.path, { ...set, ...query }), replace);
}

function follow(): void {
  const before = place.value.path;
  place.value = read();
  if (before !== place.value.path) {
    moved = true;
    scrollTo(0, 0);
  }
}

// start makes links and the back button work without a load.
export function start(): void {
  addEventListener("popstate", follow);
  document.addEventListener("click", (event) => {
    if (event.defaultPrevented || event.button !== 0 || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
    const link = event.target instanceof Element ? event.target.closest("a") : null;
    if (!link || link.target || link.hasAttribute("download") || link.origin !== location.origin || link.hash) return;
    if (!link.pathname.startsWith(base + "/") && link.pathname !== base) return;
    event.preventDefault();
    go(link.pathname + link.search);
  });
}

// useTitle sets the title of the document and, after a move, the focus on the page's heading.
export function useTitle(title: string | undefined, heading: { current: HTMLElement | null }): void {
  const path = place.value.path;
  useLayoutEffect(() => {
    if (title !== undefined && moved) heading.current?.focus();
  }, [title === undefined, path]);
  useLayoutEffect(() => {
    if (title !== undefined) document.title = `${title} · mtagd`;
  }, [title]);
}
