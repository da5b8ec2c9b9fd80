// The queue: the events that have no answer from the tag host yet. With consent each event is also in localStorage, so
// that the next page of the site can send it. The tag host records a repeated event once, by its event_id.

import { exclusively, release } from './lock';
import { PREFIX, stored } from './storage';
import { erase } from './visitor';
import { tell, trace, warn } from './warn';

const MAX_CHARS = 2e6; // of all events in the queue; localStorage holds 5 million for each origin
const MAX_EVENT = 65400; // bytes without the muid; the tag host accepts 64 KiB with it
const MAX_BODY = 6e4; // bytes; browsers allow 64 KiB for requests that outlive the page
const MAX_BATCH = 1000; // events; the limit of the tag host
const MAX_AGE = 6 * 864e5; // ms, 6 days; the tag host remembers an event_id for 7 days
const TIMEOUT = 3e4; // ms for one request
const FIRST_DELAY = 500; // ms before the first retry; each failure doubles it
const MAX_DELAY = 3e4; // ms
const MAX_RETRY_AFTER = 864e5; // ms, a day; a timer of more than 24 days would overflow

type Path = 'mark' | 'id';

// The events as JSON texts without the muid. A key is the time in ms, the path and a random number.
const waiting = new Map<string, string>();
let chars = 0; // of all texts in waiting

let origin = '';
let tag = ''; // the tag id; empty before init
let prefix = ''; // of the queue's keys in localStorage
let allowed = false; // the visitor consents

let draining = false;
let timer = 0; // of the next retry; 0 when none is set
let retryAfter = false; // the timer follows a Retry-After header
let failures = 0; // consecutive
let batchLimit = MAX_BATCH; // events in the next request; halved by a failure, doubled by a success

const callbacks = new Map<string, unknown>(); // by key, of events that the page wants to hear of

// The keys of events that are in a request that outlives the page, or in a beacon: flush does not send them.
const leaving = new Set<string>();

const ready = () => tag && allowed;

const bytes = (text: string) => new Blob([text]).size;

const save = (text: string, key: string) => stored((s) => s.setItem(prefix + key, text));

// hold adds an event in memory only. It throws when text is undefined: so JSON.stringify renders an object whose toJSON
// returns undefined.
function hold(key: string, text: string) {
  chars += text.length;
  waiting.set(key, text);
}

// unhold removes an event from memory only.
function unhold(key: string) {
  chars -= (waiting.get(key) || '').length;
  waiting.delete(key);
}

// drop removes an event from memory and localStorage. It first stores an empty text, which tells other tabs to remove
// the event too, even when this page is closed before removeItem.
function drop(key: string) {
  unhold(key);
  if (ready()) stored((s) => (s.setItem(prefix + key, ''), s.removeItem(prefix + key)));
}

// open sets the tag host and the tag.
export function open(host: string, id: string) {
  origin = host;
  tag = id;
  prefix = PREFIX + id + '.';
}

// consented sets whether the visitor consents. With consent the events are stored and sent, without it they wait in
// memory.
export function consented(given: boolean) {
  allowed = given;
  if (ready()) {
    waiting.forEach(save);
    drain();
  }
}

// forget removes the events of all tags, and the lease, from localStorage.
export function forget() {
  stored((s) => Object.keys(s).forEach((key) => key.startsWith(PREFIX) && s.removeItem(key)));
}

// add queues an event. It copies the fields, so later changes of them do not matter.
// recorded is called when the tag host has recorded it.
export function add(path: Path, fields: object & { event?: unknown }, recorded?: unknown) {
  const text = JSON.stringify(fields);
  if (bytes(text) > MAX_EVENT) return warn('too large, not sent:', fields.event);
  const key = Date.now() + path + Math.random();
  hold(key, text);
  trace('mtag: queued', fields);
  callbacks.set(key, recorded);
  save(text, key);
  while (chars > MAX_CHARS) {
    warn('queue is full, the oldest event was dropped');
    drop(waiting.keys().next().value!);
  }
  drain();
}

// collect adds the events that other pages have left in localStorage. It removes events older than MAX_AGE, because the
// tag host might record them a second time, and the empty texts that drop has left.
function collect() {
  stored((s) => Object.keys(s).sort().forEach((name) => stored(() => {
    if (!name.startsWith(prefix)) return;
    const key = name.slice(prefix.length);
    const text = s.getItem(name)!;
    if (!text || parseInt(key) < Date.now() - MAX_AGE) s.removeItem(name);
    else if (!waiting.has(key) && JSON.parse(text)) hold(key, text);
  })));
}

// bundle makes one request of the first keys, and returns which keys it contains. A request to /id has one event.
function bundle(keys: string[], limit: number): [url: string, body: string, taken: string[]] {
  const isID = (key: string) => key.includes('id');
  const texts: string[] = [];
  let size = 0;
  for (const key of keys.slice(0, limit)) {
    const text = waiting.get(key)!;
    size += bytes(text) + 1; // a comma
    if (texts[0] && (isID(keys[0]) || isID(key) || size > MAX_BODY)) break;
    texts.push(text);
  }
  return [
    `${origin}/${isID(keys[0]) ? 'id' : 'mark'}/${tag}`,
    texts[1] ? `[${texts}]` : texts[0],
    keys.slice(0, texts.length),
  ];
}

// drain takes the lock, and sends events until the queue is empty or a request fails. Without the lock it tries later.
async function drain() {
  if (draining || timer || !ready() || !waiting.size) return;
  draining = true;
  const locked = await exclusively(async () => {
    // Collect before each request: what a closing page has stored may become visible late.
    while (ready() && (collect(), waiting.size) && await send());
  });
  draining = false;
  if (!locked) later(FIRST_DELAY);
  drain(); // for events that were added after the last request; it returns when a retry is set
}

// wasRecorded tells the page that the tag host has recorded an event.
function wasRecorded(key: string) {
  trace('mtag: recorded', waiting.get(key));
  tell(callbacks.get(key));
  callbacks.delete(key);
}

// later sets the timer. In a document that was replaced or removed, scripts still run but setTimeout returns 0. There
// timer becomes -1, so that drain sees a timer. Otherwise it would retry in an endless loop.
function later(ms: number) {
  timer = setTimeout(() => {
    timer = 0;
    drain();
  }, ms) || -1;
}

// send makes one request. It returns false when the queue must wait before the next one; then it has set the timer.
async function send() {
  const [url, body, keys] = bundle([...waiting.keys()], batchLimit);
  // A retry must not outlive the page: browsers limit the size of all such requests together, and that limit may be why
  // the last try failed.
  const keepalive = !failures && bytes(body) <= MAX_BODY + 2;
  if (keepalive) keys.forEach((key) => leaving.add(key));
  const stop = new AbortController();
  const alarm = setTimeout(() => stop.abort(), TIMEOUT);
  let failed = true;
  let delay = 0;
  retryAfter = false;
  try {
    // A string is sent as text/plain, which needs no preflight.
    trace('mtag: sent', body);
    const response = await fetch(url, { method: 'POST', body, keepalive, credentials: 'include', signal: stop.signal });
    const after = response.headers.get('retry-after')!;
    retryAfter = !!after;
    delay = +after * 1e3 || Date.parse(after) - Date.now() || 0;
    // A 200 without JSON is not from the tag host but from a captive portal, such as a hotel's: it counts as a failure.
    const answer = await response.json().catch((error) => {
      if (response.ok) throw error;
      return {};
    });
    let again = false;
    keys.forEach((key, i) => {
      const { status, message } = answer.results ? answer.results[i] : { status: response.status, message: answer.message };
      if (status == 429 || status >= 500) return (again = true);
      if (status >= 400) warn(message, waiting.get(key));
      else wasRecorded(key);
      drop(key);
    });
    failed = again;
  } catch {}
  clearTimeout(alarm);
  keys.forEach((key) => leaving.delete(key));
  if (!allowed) erase(); // consent was withdrawn meanwhile, and the answer may have renewed the cookie
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

// flush sends the events with sendBeacon before the page closes, as many as the browser accepts. They stay in the
// queue, because a beacon has no answer: the next page may send them once more.
function flush() {
  if (!ready()) return;
  let keys = [...waiting.keys()].filter((key) => !leaving.has(key));
  let limit = MAX_BATCH;
  while (keys[0] && limit) {
    const [url, body, taken] = bundle(keys, limit);
    if (navigator.sendBeacon(url, body)) {
      trace('mtag: sent', body);
      taken.forEach((key) => leaving.add(key));
      keys = keys.slice(taken.length);
    } else limit = taken.length >> 1; // the browser's limit is reached: try half as many
  }
}

// retryNow retries before the timer fires, unless the tag host has set the time with Retry-After. The page is in use
// again, so the next flush sends events again that were in a beacon.
function retryNow() {
  leaving.clear();
  if (retryAfter) return;
  clearTimeout(timer);
  timer = 0;
  drain();
}

// deliver sends events when the page may close, and retries when that may succeed. It follows what other tabs remove.
export function deliver() {
  addEventListener('pagehide', () => {
    flush();
    release();
  });
  document.addEventListener('visibilitychange', () => (document.visibilityState == 'hidden' ? flush() : retryNow()));
  addEventListener('online', retryNow);
  addEventListener('storage', ({ key, newValue }) => {
    if (newValue != '') return;
    const dropped = key!.slice(prefix.length);
    wasRecorded(dropped);
    unhold(dropped);
  });
}
