// Parts: scripts that the base script loads when a page first needs them.

import { kit } from './kit';
import { Key } from './storage';
import { safely, soon } from './warn';

type Call = () => void;

const enum Is {
  PATIENCE = 4e3, // ms, the longest delay: calls wait for a part for 7 seconds
}

const asked: Record<string, unknown> = {}; // parts that were requested
export let base = ''; // the address of the tag host; empty before init
export let tag = ''; // the tag id
export let prefix = ''; // the keys of the tag's records in localStorage begin with it
const delays: Record<string, number> = {}; // ms before the next look whether a part has loaded
let held: Call[] | false = []; // calls that wait for init, or for a part

// hold makes a call, or queues it while calls wait.
export const hold = (call: Call) => (held ? held.push(call) : safely(call));

// release makes the waiting calls, in order. When one of them needs another part, the rest wait for that part.
export const release = () => {
  const calls = held;
  held = !base && [];
  if (calls) calls.forEach(hold);
};

// start ends the wait for init: it makes the first call, the waiting calls, and the last call.
export const start = (address: string, id: string, first: Call, last: Call) => {
  base = address;
  tag = id;
  prefix = Key.PREFIX + id + '.';
  held = [first, ...(held as Call[]), last];
  release();
};

// load loads a part. Calls go on meanwhile, because loading fails while the tag host is down.
export const load = (part: string) => {
  if (asked[part]) return;
  const script = (asked[part] = document.createElement('script'));
  script.src = base + '/script?with=' + part;
  script.onerror = () => (asked[part] = 0); // the next need loads it again
  document.head.append(script);
};

// need makes a call once the part has loaded. Later calls wait for it, and loading is tried again, each time after twice
// the delay. When the part does not come in time, or the page closes, need makes the other call instead; without one it
// waits on.
export const need = (part: string, call: Call, instead?: Call) => {
  if (kit[part]) return call();
  load(part);
  const delay = (delays[part] = delays[part] * 2 || 1e3);
  if (instead && (kit.left_ || delay > Is.PATIENCE)) return instead();
  held = [() => need(part, call, instead)];
  soon(release, delay);
};
