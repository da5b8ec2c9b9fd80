// Parts: scripts that the base script loads when a page first needs them.

import { kit } from './kit';
import { Key } from './storage';
import { safely } from './warn';

type Call = () => void;

const asked: Record<string, unknown> = {}; // parts that were requested
export let base = ''; // the address of the tag host; empty before init
export let tag = ''; // the tag id
export let prefix = ''; // the keys of the tag's records in localStorage begin with it
let held: Call[] | undefined = []; // calls that wait for init, or for a part

// hold makes a call, or queues it while calls wait.
export const hold = (call: Call, now?: unknown) => (held && !now ? held.push(call) : safely(call));

// release makes the waiting calls, in order. When one of them needs another part, the rest wait for that part.
export function release() {
  const calls = held;
  held = base ? undefined : [];
  if (calls) calls.forEach((call) => hold(call));
}

// start ends the wait for init: it makes the first call, the waiting calls, and the last call.
export function start(address: string, id: string, first: Call, last: Call) {
  base = address;
  tag = id;
  prefix = Key.PREFIX + id + '.';
  held = [first, ...held!, last];
  release();
}

// load loads a part. Calls go on meanwhile, because loading fails while the tag host is down.
export function load(part: string) {
  if (asked[part]) return;
  const script = (asked[part] = document.createElement('script'));
  script.src = base + '/script?with=' + part;
  script.onerror = () => (asked[part] = 0); // the next need loads it again
  document.head.append(script);
}

// need makes a call once the part has loaded. Later calls wait for it.
export function need(part: string, call: Call) {
  if (kit[part]) return call();
  held = [() => need(part, call)];
  load(part);
}
