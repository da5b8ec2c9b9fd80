// Parts: scripts that the base script loads when a page first needs them.

import { kit } from './kit';
import { Key } from './storage';
import { safely } from './warn';

type Call = () => void;

const asked: Record<string, unknown> = {}; // parts
export let base = ''; // the address of the tag host; empty before init
export let tag = ''; // the tag id
export let prefix = ''; // of the keys of the tag's records in localStorage
let held: Call[] | undefined = []; // calls that wait for init, or for a part

// hold makes a call, or lets it wait.
export const hold = (call: Call, now?: unknown) => (held && !now ? held.push(call) : safely(call));

// release makes the calls that have waited, in order. One of them may need another part: then the rest waits for that.
export function release() {
  const calls = held;
  held = base ? undefined : [];
  if (calls) calls.forEach((call) => hold(call));
}

// start ends the wait for init: it makes a first call, those that have waited, and a last one.
export function start(address: string, id: string, first: Call, last: Call) {
  base = address;
  tag = id;
  prefix = Key.PREFIX + id + '.';
  held = [first, ...held!, last];
  release();
}

// load gets a part, which may not come while the tag host is away. Calls go on meanwhile.
export function load(part: string) {
  if (asked[part]) return;
  const script = (asked[part] = document.createElement('script'));
  script.src = base + '/script?with=' + part;
  script.onerror = () => (asked[part] = 0); // it is asked for again when it is needed again
  document.head.append(script);
}

// need makes a call when the part is there. Later calls wait for it.
export function need(part: string, call: Call) {
  if (kit[part]) return call();
  held = [() => need(part, call)];
  load(part);
}
