// Delivery: sends the events of the queue, retries, and stops at once when consent is withdrawn.

import { exclusively, release } from './lock';
import { device } from './page';
import { bytes, drop, follow, forget, isID, keep, put, waiting, type Path } from './queue';
import { json, PREFIX, stored } from './storage';
import { erase, renewable, visitor } from './visitor';
import { warn } from './warn';

const MAX_BODY = 6e4; // bytes; browsers allow 64 KiB for requests that outlive the page
const MAX_BATCH = 1000; // events; the limit of the tag host
const MAX_AGE = 6 * 864e5; // ms, 6 days; the tag host remembers an event_id for 7 days
const TIMEOUT = 3e4; // ms for one request
const PATIENCE = 5e3; // ms after which a request without an answer no longer holds up the others
const MAX_OPEN = 4; // requests under way
const FIRST_DELAY = 500; // ms before the first retry; each failure doubles it
const MAX_DELAY = 3e4; // ms
const MAX_RETRY_AFTER = 3e5; // ms, 5 minutes

const RENEWED = PREFIX + 'renewed'; // when a request last asked the tag host to renew the cookie, in ms
const RENEW_AFTER = 864e5; // ms, a day

let base = ''; // the address of the tag host
let tag = ''; // the tag id; empty before init
let allowed = false; // the visitor consents

let draining = false;
let timer = 0; // of the next retry; 0 when none is set
let retryAfter = false; // the timer follows a Retry-After header
let failures = 0; // consecutive
let batchLimit = MAX_BATCH; // events in the next request; halved by a failure, doubled by a success
let renewed = 0; // as in RENEWED
let muid = ''; // in the last request

// The keys of events in requests that are under way.
const sending = new Set<string>();

// The keys of events that are in a request that outlives the page, or in a beacon: flush does not send them.
const leaving = new Set<string>();

// What ends each request that is under way, and whether it outlives the page.
const open = new Map<AbortController, boolean>();

const ready = () => tag && allowed;

const pause = (ms: number) => new Promise((resolve) => setTimeout(resolve, ms));

// install sets the address of the tag host, the tag and whether the visitor consents.
export function install(address: string, id: string, given: boolean) {
  base = address;
  tag = id;
  // consent: false here does not delete the cookie, because the visitor has not withdrawn consent. Many pages ask for it
  // at each load, and the muid of an earlier visit must still be there when the visitor agrees.
  if (given) consented();
}

// consented begins to store and send the events. Without consent they wait in memory.
export function consented() {
  allowed = true;
  if (!tag) return;
  keep(tag);
  renewed = +stored((s) => s.getItem(RENEWED))! || 0;
  retryAfter = false;
  retryNow();
}

// withdraw aborts all requests, and removes what the tag has stored. The events wait in memory. When consent was withdrawn
// elsewhere, in another tab, the cookie may already be a new visitor's: then it stays.
export function withdraw(elsewhere?: unknown) {
  allowed = false;
  open.forEach((_, stop) => stop.abort());
  forget(!!elsewhere);
  erase(elsewhere ? muid : undefined);
}

// add queues an event.
export function add(path: Path, fields: object) {
  if (put(path, fields)) drain();
}

// bundle makes one request of the first keys, and returns which keys it contains. A request to /id has one event. It drops
// events that are broken, and those older than MAX_AGE, because the tag host might record them a second time. It returns
// undefined when nothing is left, or when consent was withdrawn on another host of the site.
function bundle(keys: string[], limit: number): [url: string, body: string, taken: string[]] | undefined {
  muid = visitor(base);
  if (!muid) return withdraw() as undefined;
  const common = Object.assign({ muid }, device());
  const texts: string[] = [];
  const taken: string[] = [];
  let size = 0;
  for (const key of keys) {
    let fields: object | undefined;
    try {
      if (parseInt(key) > Date.now() - MAX_AGE) fields = JSON.parse(waiting.get(key)!);
    } catch {}
    if (!fields) {
      drop(key);
      continue;
    }
    const text = json(Object.assign({}, common, fields));
    size += bytes(text) + 1; // a comma
    if (texts[0] && (isID(key) || size > MAX_BODY || texts.length >= limit)) break;
    texts.push(text);
    taken.push(key);
    if (isID(key)) break;
  }
  if (!texts[0]) return;
  // The tag host corrects a wrong clock by t.
  const url = `${base}/${isID(taken[0]) ? 'id' : 'mark'}/${tag}?t=${Date.now()}`;
  return [url, texts[1] ? `[${texts}]` : texts[0], taken];
}

// idle returns the keys of the events that are in no request.
const idle = () => [...waiting.keys()].filter((key) => !sending.has(key));

// drain takes the lock, and sends events until the queue is empty or a request fails. Without the lock it tries later. It
// makes one request at a time, but a request that has no answer after PATIENCE no longer holds up the other events.
async function drain() {
  if (draining || timer || !ready() || !idle()[0]) return;
  draining = true;
  const locked = await exclusively(async () => {
    const requests = new Set<Promise<void>>();
    for (;;) {
      const request = ready() && !timer && requests.size < MAX_OPEN && send();
      if (request) {
        requests.add(request);
        request.then(() => requests.delete(request));
      } else if (!requests.size) return;
      await Promise.race([...requests, pause(PATIENCE)]);
    }
  });
  draining = false;
  if (!locked) later(FIRST_DELAY);
  drain(); // for events that were added after the last request; it returns when a retry is set
}

// later sets the timer. In a document that was replaced or removed, scripts still run but setTimeout returns 0. There
// timer becomes -1, so that drain sees a timer. Otherwise it would retry in an endless loop.
function later(ms: number) {
  clearTimeout(timer);
  timer = setTimeout(() => {
    timer = 0;
    drain();
  }, ms) || -1;
}

// send begins a request, and returns a promise of its end; undefined when there is nothing to send. After a failure the
// timer is set.
function send() {
  const made = bundle(idle(), batchLimit);
  if (!made) return;
  const [url, body, keys] = made;
  // A request that may outlive the page must not renew the cookie: its answer could come after consent was withdrawn.
  const renew = !failures && renewable(base) && Math.abs(Date.now() - renewed) > RENEW_AFTER;
  // A retry must not outlive the page: browsers limit the size of all such requests together, and that limit may be why
  // the last try failed.
  const keepalive = !failures && !renew && bytes(body) <= MAX_BODY + 2;
  if (renew) {
    renewed = Date.now();
    stored((s) => s.setItem(RENEWED, renewed + ''));
  }
  return request(url + (renew ? '&renew=1' : ''), body, keys, keepalive);
}

async function request(url: string, body: string, keys: string[], keepalive: boolean) {
  const stop = new AbortController();
  open.set(stop, keepalive);
  keys.forEach((key) => sending.add(key) && keepalive && leaving.add(key));
  const alarm = setTimeout(() => stop.abort(), TIMEOUT);
  const as = muid;
  let failed = true;
  let delay = 0;
  try {
    // A string is sent as text/plain, which needs no preflight.
    const response = await fetch(url, { method: 'POST', body, keepalive, credentials: 'include', signal: stop.signal });
    const after = response.headers.get('retry-after')!;
    delay = +after * 1e3 || Date.parse(after) - Date.now() || 0;
    // Without this header the answer is not from the tag host but from a captive portal, such as a hotel's, or a proxy.
    if (response.headers.get('mtag')) {
      const answer = await response.json();
      failed = keys.filter((key, i) => {
        const { status, message } = answer.results ? answer.results[i] : { status: response.status, message: answer.message };
        if (status >= 500 || [408, 421, 425, 429].includes(status)) return true;
        if (status >= 400) warn(message, waiting.get(key));
        drop(key);
      }).length > 0;
    }
  } catch {}
  clearTimeout(alarm);
  open.delete(stop);
  keys.forEach((key) => sending.delete(key) && leaving.delete(key));
  if (!allowed) {
    // The answer may have renewed the cookie at the last moment.
    erase(as);
    setTimeout(() => allowed || erase(as), 1e3);
  } else if (failed) {
    // Halve the batch and move its events to the end: an event that always fails must not block the others.
    batchLimit = Math.ceil(keys.length / 2);
    keys.forEach((key) => {
      const text = waiting.get(key);
      if (text && waiting.delete(key)) waiting.set(key, text);
    });
    const backOff = Math.min(MAX_DELAY, FIRST_DELAY * 2 ** failures++);
    retryAfter = delay > 0;
    later(Math.min(Math.max(delay, 0), MAX_RETRY_AFTER) + backOff * (0.5 + Math.random() / 2));
  } else {
    batchLimit = Math.min(batchLimit * 2, MAX_BATCH);
    failures = 0;
  }
}

// flush sends the events with sendBeacon before the page closes, as many as the browser accepts. They stay in the
// queue, because a beacon has no answer: the next page may send them once more.
function flush() {
  if (!ready()) return;
  let keys = [...waiting.keys()].filter((key) => !leaving.has(key));
  let limit = MAX_BATCH;
  while (keys[0] && limit) {
    const made = bundle(keys, limit);
    if (!made) return;
    const [url, body, taken] = made;
    if (beacon(url, body)) {
      taken.forEach((key) => leaving.add(key));
      keys = keys.filter((key) => !leaving.has(key));
    } else limit = taken.length >> 1; // the browser's limit is reached: try half as many
  }
}

function beacon(url: string, body: string) {
  if (navigator.sendBeacon) return navigator.sendBeacon(url, body);
  fetch(url, { method: 'POST', body, keepalive: true, credentials: 'include' }).catch(() => {});
  return true;
}

// retryNow retries before the timer fires, unless the tag host has set the time with Retry-After. The page is in use
// again, so the next flush sends events again that were in a beacon.
function retryNow() {
  leaving.clear();
  if (retryAfter && timer) return;
  clearTimeout(timer);
  timer = 0;
  drain();
}

// deliver sends events when the page may close, and retries when that may succeed.
export function deliver() {
  follow(() => withdraw(true));
  addEventListener('pagehide', () => {
    open.forEach((keepalive, stop) => keepalive || stop.abort());
    flush();
    release();
  });
  document.addEventListener('visibilitychange', () => (document.visibilityState == 'hidden' ? flush() : retryNow()));
  addEventListener('online', retryNow);
}
