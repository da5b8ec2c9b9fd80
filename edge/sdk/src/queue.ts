// The queue: the events that the tag host has not answered yet. With consent each event is also in localStorage, so the
// next page of the site can send it. The tag host records a repeated event once, by its event_id.

import { exclusively, release } from './lock';
import { PREFIX, stored } from './storage';
import { erase, visitor } from './visitor';
import { warn } from './warn';

const MAX_CHARS = 2e6; // in the queue; localStorage holds 5 million for each site
const MAX_EVENT = 65400; // bytes; the tag host accepts 64 KiB with the muid
const MAX_BODY = 6e4; // bytes; browsers allow 64 KiB for requests that outlive the page
const MAX_BATCH = 1000; // events; the limit of the tag host
const MAX_AGE = 6 * 864e5; // ms; the tag host remembers an event_id for 7 days
const TIMEOUT = 3e4; // ms
const FIRST_DELAY = 500; // ms
const MAX_DELAY = 3e4; // ms
const MAX_RETRY_AFTER = 864e5; // ms; timers overflow after 24 days

type Path = 'mark' | 'id';

// The events by key, as JSON texts without a muid. A key begins with the time in ms, followed by the path.
const waiting = new Map<string, string>();
let chars = 0;

let origin = '';
let tag = ''; // the tag id; empty before init
let prefix = ''; // of the queue's keys in localStorage
let allowed = false;

let draining = false;
let timer = 0; // of the next retry; 0 when none is set
let retryAfter = false; // the timer follows a Retry-After header
let failures = 0; // consecutive
let batchLimit = MAX_BATCH; // events in the next request

// The keys of events in requests that outlive the page.
const leaving = new Set<string>();

const ready = () => tag && allowed;

const bytes = (text: string) => new Blob([text]).size;

const save = (text: string, key: string) => stored((s) => s.setItem(prefix + key, text));

// hold adds an event. It throws when text is undefined, which JSON.stringify returns when toJSON returns undefined.
function hold(key: string, text: string) {
  chars += text.length;
  waiting.set(key, text);
}

// unhold removes an event from memory only.
function unhold(key: string) {
  chars -= (waiting.get(key) || '').length;
  waiting.delete(key);
}

// drop removes an event that is done. The empty text tells the other tabs to remove it too; they also see it when this
// page is closed before removeItem.
function drop(key: string) {
  unhold(key);
  if (ready()) stored((s) => (s.setItem(prefix + key, ''), s.removeItem(prefix + key)));
}

// open sets the tag host, the tag and the consent.
export function open(host: string, id: string, given: boolean) {
  origin = host;
  tag = id;
  prefix = PREFIX + id + '.';
  consented(given);
}

// consented sends the events when consent is given. Otherwise they stay in memory.
export function consented(given: boolean) {
  allowed = given;
  if (ready()) {
    waiting.forEach(save);
    drain();
  }
}

// forget removes everything of all tags from localStorage.
export function forget() {
  stored((s) => Object.keys(s).forEach((key) => key.startsWith(PREFIX) && s.removeItem(key)));
}

// add queues an event. Later changes of fields do not change it.
export function add(path: Path, fields: object & { event?: unknown }) {
  const text = JSON.stringify(fields);
  if (bytes(text) > MAX_EVENT) return warn('too large, not sent:', fields.event);
  const key = Date.now() + path + Math.random();
  hold(key, text);
  if (ready()) save(text, key);
  while (chars > MAX_CHARS) {
    warn('queue is full, the oldest event was dropped');
    drop(waiting.keys().next().value!);
  }
  drain();
}

// collect adds the events that other pages have left in localStorage. It removes those that are older than MAX_AGE: the
// tag host might record them a second time.
function collect() {
  stored((s) => Object.keys(s).sort().forEach((name) => stored(() => {
    if (!name.startsWith(prefix)) return;
    const key = name.slice(prefix.length);
    const text = s.getItem(name)!;
    if (!text || parseInt(key) < Date.now() - MAX_AGE) s.removeItem(name);
    else if (!waiting.has(key) && JSON.parse(text)) hold(key, text);
  })));
}

// bundle makes a request from the first keys, and returns the keys that it contains. A request to /id has one event.
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

// drain sends events until the queue is empty or a request fails. It needs the lock.
async function drain() {
  if (draining || timer || !ready() || !waiting.size) return;
  draining = true;
  const locked = await exclusively(async () => {
    // Collect each time: what a closing page has stored may become visible late.
    while (ready() && (collect(), waiting.size) && await send());
  });
  draining = false;
  if (!locked) later(FIRST_DELAY);
  drain(); // events that were added after the last send
}

// later sets the timer. In a document that was replaced or removed, setTimeout returns 0 while scripts still run. There
// -1 stands for a timer that never fires: otherwise the queue would retry in an endless loop.
function later(ms: number) {
  timer = setTimeout(() => {
    timer = 0;
    drain();
  }, ms) || -1;
}

// send makes one request, and returns whether the next one may follow at once.
async function send() {
  const [url, body, keys] = bundle([...waiting.keys()], batchLimit);
  // Only the first try outlives the page: the browser limits such requests, and the limit may be the cause of the
  // failure.
  const keepalive = !failures && bytes(body) <= MAX_BODY + 2;
  if (keepalive) keys.forEach((key) => leaving.add(key));
  const stop = new AbortController();
  const alarm = setTimeout(() => stop.abort(), TIMEOUT);
  let failed = true;
  let delay = 0;
  retryAfter = false;
  try {
    // A string is sent as text/plain, which needs no preflight.
    const response = await fetch(url, { method: 'POST', body, keepalive, credentials: 'include', signal: stop.signal });
    const after = response.headers.get('retry-after')!;
    retryAfter = !!after;
    delay = +after * 1e3 || Date.parse(after) - Date.now() || 0;
    // A 200 that is not JSON is not from the tag host but from a captive portal, such as a hotel's.
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
    // Halve the batch and move its events to the end: an event that always fails must not block the others.
    batchLimit = Math.ceil(keys.length / 2);
    keys.forEach((key) => {
      const text = waiting.get(key);
      if (text && waiting.delete(key)) waiting.set(key, text);
    });
    const backOff = Math.min(MAX_DELAY, FIRST_DELAY * 2 ** failures++);
    later(Math.min(Math.max(delay, 0), MAX_RETRY_AFTER) + backOff * (0.5 + Math.random() / 2));
  } else {
    batchLimit = Math.min(batchLimit * 2, MAX_BATCH);
    failures = 0;
  }
  return !failed;
}

// flush sends the events with sendBeacon, as many as the browser accepts, before the page closes. They stay in the queue:
// a beacon has no answer.
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

// retryNow retries before the timer fires, unless the tag host has set the time with Retry-After.
function retryNow() {
  leaving.clear();
  if (retryAfter) return;
  clearTimeout(timer);
  timer = 0;
  drain();
}

// deliver listens for the end of the page, and for moments when a retry may succeed.
export function deliver() {
  addEventListener('pagehide', () => {
    flush();
    release();
  });
  document.addEventListener('visibilitychange', () => (document.visibilityState == 'hidden' ? flush() : retryNow()));
  addEventListener('online', retryNow);
  addEventListener('storage', ({ key, newValue }) => {
    if (newValue == '') unhold(key!.slice(prefix.length));
  });
}
