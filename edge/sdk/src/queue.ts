// The queue: events on their way to the tag host. One leaves it when the tag host has answered for it,
// not before. With consent there is a copy in localStorage, which outlives the page: the next page of the site
// goes on with it. A repeated event is recorded once, by its event_id.

import { exclusively, release } from './lock';
import { PREFIX, stored } from './storage';
import { erase, visitor } from './visitor';
import { warn } from './warn';

const MAX_CHARS = 2e6; // in the queue; browsers give a site 5 million
const MAX_EVENT = 65400; // bytes; the tag host takes 64 KiB, the muid included
const MAX_BODY = 6e4; // bytes; browsers let 64 KiB outlive a page
const MAX_BATCH = 1000; // events; the tag host takes no more
const MAX_AGE = 6 * 864e5; // ms; the tag host knows an event_id for 7 days
const TIMEOUT = 3e4; // ms
const FIRST_DELAY = 500; // ms
const MAX_DELAY = 3e4; // ms
const MAX_TOLD = 864e5; // ms; timers overflow after 24 days

type Path = 'mark' | 'id';

// JSON texts by key, without a muid. A key begins with the time, and then the path.
const waiting = new Map<string, string>();
let chars = 0;

let origin = '';
let tag = ''; // its id; empty before init
let prefix = ''; // of the keys in localStorage
let allowed = false;

let draining = false;
let timer = 0; // of the next try; 0 when none is set
let told = false; // it was the tag host that said when
let failures = 0; // in a row
let most = MAX_BATCH; // events in the next request

// Keys in requests that outlive the page.
const leaving = new Set<string>();

const ready = () => tag && allowed;

const bytes = (text: string) => new Blob([text]).size;

const save = (text: string, key: string) => stored((s) => s.setItem(prefix + key, text));

// hold throws, and holds nothing, where there is no text: JSON has none for an object whose toJSON returns nothing.
function hold(key: string, text: string) {
  chars += text.length;
  waiting.set(key, text);
}

// unhold leaves localStorage alone: a page that is being closed may get no further than the empty text.
function unhold(key: string) {
  chars -= (waiting.get(key) || '').length;
  waiting.delete(key);
}

// drop is for what is settled. Tabs that hold the same event hear of it by the empty text.
function drop(key: string) {
  unhold(key);
  if (ready()) stored((s) => (s.setItem(prefix + key, ''), s.removeItem(prefix + key)));
}

// open says which tag the events are for, and whether they may go.
export function open(host: string, id: string, given: boolean) {
  origin = host;
  tag = id;
  prefix = PREFIX + id + '.';
  consented(given);
}

// consented lets the events go, or keeps them in memory.
export function consented(given: boolean) {
  allowed = given;
  if (ready()) {
    waiting.forEach(save);
    drain();
  }
}

// forget leaves nothing of any tag in localStorage.
export function forget() {
  stored((s) => Object.keys(s).forEach((key) => key.startsWith(PREFIX) && s.removeItem(key)));
}

// add takes the fields as they are now.
export function add(path: Path, fields: object & { event?: unknown }) {
  const text = JSON.stringify(fields);
  if (bytes(text) > MAX_EVENT) return warn('too large, not sent:', fields.event);
  const key = Date.now() + path + Math.random();
  hold(key, text);
  if (ready()) save(text, key);
  while (chars > MAX_CHARS) {
    warn('too much is waiting, the oldest is given up');
    drop(waiting.keys().next().value!);
  }
  drain();
}

// collect takes over what other pages have left behind, as long as the tag host would know it again.
function collect() {
  stored((s) => Object.keys(s).sort().forEach((name) => stored(() => {
    if (!name.startsWith(prefix)) return;
    const key = name.slice(prefix.length);
    const text = s.getItem(name)!;
    if (!text || parseInt(key) < Date.now() - MAX_AGE) s.removeItem(name);
    else if (!waiting.has(key) && JSON.parse(text)) hold(key, text);
  })));
}

// bundle makes a request of the first of the keys, and says of how many.
function bundle(keys: string[], limit: number): [url: string, body: string, taken: string[]] {
  const isID = (key: string) => key.includes('id');
  const texts: string[] = [];
  let size = 0;
  for (const key of keys.slice(0, limit)) {
    const text = JSON.stringify(Object.assign({ muid: visitor() }, JSON.parse(waiting.get(key)!)));
    size += bytes(text) + 1;
    if (texts[0] && (isID(keys[0]) || isID(key) || size > MAX_BODY)) break;
    texts.push(text);
  }
  return [
    `${origin}/${isID(keys[0]) ? 'id' : 'mark'}/${tag}`,
    texts[1] ? `[${texts}]` : texts[0],
    keys.slice(0, texts.length),
  ];
}

// drain sends what is waiting, in this tab's turn, until there is nothing left or a request fails.
async function drain() {
  if (draining || timer || !ready() || !waiting.size) return;
  draining = true;
  const ours = await exclusively(async () => {
    // Each time: what a page stored as it was closed may come to light with a delay.
    while (ready() && (collect(), waiting.size) && await send());
  });
  draining = false;
  if (!ours) later(FIRST_DELAY);
  drain(); // what came while the turn ended
}

// later sets the timer. A document that was replaced or removed while its scripts run on gets none but 0, and
// would try again at once, for ever, in the process of the next page.
function later(ms: number) {
  timer = setTimeout(() => {
    timer = 0;
    drain();
  }, ms) || -1;
}

// send makes one request, and reports whether the next one may follow at once.
async function send() {
  const [url, body, keys] = bundle([...waiting.keys()], most);
  // The browser's share for requests that outlive pages may be used up, so only the first try is one.
  const keepalive = !failures && bytes(body) <= MAX_BODY + 2;
  if (keepalive) keys.forEach((key) => leaving.add(key));
  const stop = new AbortController();
  const alarm = setTimeout(() => stop.abort(), TIMEOUT);
  let failed = true;
  let delay = 0;
  told = false;
  try {
    // A string goes as text/plain, which needs no preflight.
    const response = await fetch(url, { method: 'POST', body, keepalive, credentials: 'include', signal: stop.signal });
    const after = response.headers.get('retry-after')!;
    told = !!after;
    delay = +after * 1e3 || Date.parse(after) - Date.now() || 0;
    // An answer of 200 that is not the tag host's, as in a hotel's network, settles nothing.
    const answer = await response.json().catch((error) => {
      if (response.ok) throw error;
      return {};
    });
    let again = false;
    keys.forEach((key, i) => {
      const { status, message } = answer.results ? answer.results[i] : { status: response.status, message: answer.message };
      if (status == 429 || status >= 500) return (again = true);
      if (status >= 400) warn(message, waiting.get(key));
      drop(key);
    });
    failed = again;
  } catch {}
  clearTimeout(alarm);
  keys.forEach((key) => leaving.delete(key));
  if (!allowed) erase(); // the answer may have renewed the cookie
  if (failed) {
    // Smaller, and the others first: one event that cannot pass must not hold up the rest.
    most = Math.ceil(keys.length / 2);
    keys.forEach((key) => {
      const text = waiting.get(key);
      if (text && waiting.delete(key)) waiting.set(key, text);
    });
    const backOff = Math.min(MAX_DELAY, FIRST_DELAY * 2 ** failures++);
    later(Math.min(Math.max(delay, 0), MAX_TOLD) + backOff * (0.5 + Math.random() / 2));
  } else {
    most = Math.min(most * 2, MAX_BATCH);
    failures = 0;
  }
  return !failed;
}

// flush hands over what would be lost with the page, as much as the browser takes. It stays in the queue: nobody
// answers for it.
function flush() {
  if (!ready()) return;
  let keys = [...waiting.keys()].filter((key) => !leaving.has(key));
  let limit = MAX_BATCH;
  while (keys[0] && limit) {
    const [url, body, taken] = bundle(keys, limit);
    if (navigator.sendBeacon(url, body)) {
      taken.forEach((key) => leaving.add(key));
      keys = keys.slice(taken.length);
    } else limit = taken.length >> 1;
  }
}

// wake tries again before the time is up, unless that is the tag host's.
function wake() {
  leaving.clear();
  if (told) return;
  clearTimeout(timer);
  timer = 0;
  drain();
}

// deliver begins to watch for the page's end, and for better times.
export function deliver() {
  addEventListener('pagehide', () => {
    flush();
    release();
  });
  document.addEventListener('visibilitychange', () => (document.visibilityState == 'hidden' ? flush() : wake()));
  addEventListener('online', wake);
  addEventListener('storage', ({ key, newValue }) => {
    if (newValue == '') unhold(key!.slice(prefix.length));
  });
}
