// Parts: scripts that the base script loads when a page first needs them.

import type { Options } from '../npm/mtag';
import { kit } from './kit';
import { Key } from './storage';
import { now, safely, soon, warn } from './warn';

type Call = () => void;

const enum Is {
  PATIENCE = 65e2, // ms for which calls wait for a part, and then until the next look: 7 seconds in all
  DELAY = 1e3, // ms before the first look whether it has loaded
  MAX_DELAY = 3e5, // ms, 5 minutes; the device may have slept for hours
}

const asked: Record<string, unknown> = {}; // parts that were requested
export let base: string; // the address of the tag host; undefined before init
export let tag: string; // the tag id
export let prefix: string; // the keys of the tag's records in localStorage begin with it
const since: Record<string, number> = {}; // when a part was first needed, in ms of performance.now()
let held: Call[] | false = []; // calls that wait for init, or for a part

// hold makes a call, or queues it while calls wait.
export const hold = (call: Call) => (held ? held.push(call) : safely(call));

// release makes the waiting calls, in order. When one of them needs another part, the rest wait for that part.
export const release = () => {
  const calls = held;
  held = !base && [];
  if (calls) calls.map(hold);
};

// init ends the wait for it: it makes the first choice of consent, then the waiting calls, and the first page view.
export const init = (url: string, options = {} as Options) => {
  // A relative URL, or one without https://, would lead to the page's own host.
  const found = /^(https?:\/\/[^?#]+?)\/*\?(.*&)?tagId=([^&#]+)/.exec(url);
  if (base || !found) return warn('wrong:', url);
  [, base, , tag] = found;
  prefix = Key.PREFIX + tag + '.';
  const choose = () => kit.init_(options);
  held = [
    () => (Object.keys({ consent: 0, ...options })[1] || ([] as any).toJSON ? need('options', choose) : choose()),
    ...(held as Call[]),
    () => {
      kit.viewed_();
      if (self.NavigateEvent) navigation!.addEventListener('currententrychange', kit.changed_);
    },
  ];
  release();
};

// load loads a part. Calls go on meanwhile, because loading fails while the tag host is down.
export const load = (part: string) => {
  if (asked[part]) return;
  const script = (asked[part] = document.createElement('script'));
  script.src = base + '/script?with=' + part;
  script.onerror = () => (asked[part] = 0); // the next need loads it again
  document.documentElement.append(script); // a page may have removed its head
};

// need makes a call once the part has loaded. Later calls wait for it, and loading is tried again, each time after twice
// the delay. When the part does not come in time, or the page closes, need makes the other call instead; without one it
// waits on.
export const need = (part: string, call: Call, instead?: Call) => {
  if (kit[part]) return call();
  load(part);
  const waited = now() - (since[part] = since[part] || now());
  if (instead && (kit.left_ || waited > Is.PATIENCE)) return instead();
  held = [() => need(part, call, instead)];
  soon(release, Is.DELAY + Math.min(Is.MAX_DELAY, waited));
};
