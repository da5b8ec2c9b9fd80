// Delivery: sends the events of the queue, retries, and stops at once when consent is withdrawn.

import { exclusively, release } from './lock';
import { eraseAttribution } from './attribution';
import { device } from './page';
import { bytes, drop, follow, forget, isID, keep, put, waiting, wasRecorded, type Path } from './queue';
import { json, PREFIX, stored } from './storage';
import { erase, renewable, visitor } from './visitor';
import { trace, warn } from './warn';

const MAX_BODY = 6e4; // bytes; browsers allow 64 KiB for requests that outlive the page
const MAX_AGE = 6 * 864e5; // ms, 6 days; the tag host remembers an event_id for 7 days
const TIMEOUT = 3e4; // ms for one request
const PATIENCE = 5e3; // ms after which a request without an answer no longer holds up the others
const POLL = 99; // ms between looks for new events while such a request has no answer
const FIRST_DELAY = 500; // ms before the first retry; each failure doubles it
const MAX_DELAY = 3e4; // ms
const MAX_RETRY_AFTER = 3e5; // ms, 5 minutes
const MAX_LAST = 4; // requests that a closing page makes; the browser refuses more than 64 KiB in all

const RENEWED = PREFIX + 'renewed'; // when a request last asked the tag host to renew the cookie, in ms
const RENEW_AFTER = 864e5; // ms, a day

let base = ''; // the address of the tag host
let tag = ''; // the tag id; empty before init
export let allowed = false; // the visitor consents

let draining = false;
let timer = 0; // of the next retry; 0 when none is set
let retryAfter = false; // the timer follows a Retry-After header
let failures = 0; // consecutive
let batchLimit = 1000; // events in the next request; halved by a failure, doubled by a success. MAX_BODY bounds it too
let renewed = 0; // as in RENEWED
let muid = ''; // of the last request

// The requests that are under way. Those that last outlive the page.
const open = new Set<{ keys: string[]; lasts: boolean; stop: AbortController }>();

const pause = (ms: number) => new Promise<void>((resolve) => setTimeout(resolve, ms));

// idle returns the keys of the events that may be sent now: those that are in no request.
function idle() {
  const sending = new Set<string>();
  open.forEach(({ keys }) => keys.forEach((key) => sending.add(key)));
  return tag && allowed ? [...waiting.keys()].filter((key) => !sending.has(key)) : [];
}

// install sets the address of the tag host and the tag.
export function install(address: string, id: string) {
  base = address;
  tag = id;
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
export function withdraw(elsewhere?: boolean) {
  allowed = false;
  open.forEach(({ stop }) => stop.abort());
  forget(elsewhere);
  erase(elsewhere ? muid : undefined);
  eraseAttribution();
}

// sender returns the muid of the visitor.
export const sender = () => visitor(base);

// reset makes the visitor another one. Events that wait keep the muid of now.
export function reset() {
  open.forEach(({ lasts, stop }) => lasts || stop.abort());
  erase();
  eraseAttribution(true);
  if (allowed) sender(); // now, because other tabs take a missing cookie for a withdrawal
}

// add queues an event.
export function add(path: Path, fields: object, recorded?: unknown) {
  if (put(path, Object.assign({ muid: sender() }, fields), recorded)) drain();
}

// drain takes the lock, and sends events until the queue is empty or a request fails. Without the lock it tries later. It
// makes one request at a time, but a request that has no answer after PATIENCE no longer holds up the other events.
async function drain() {
  const pending = () => !timer && idle()[0];
  if (draining || !pending()) return;
  draining = true;
  const locked = await exclusively(async () => {
    while (pending() || open.size) await Promise.race([pending() ? send() : pause(POLL), pause(PATIENCE)]);
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

// send makes one request of the first events. When it fails, it sets the timer.
async function send(leaving?: boolean) {
  const sender = (muid = visitor(base));
  if (!muid) return withdraw(); // consent was withdrawn on another host of the site
  const [path, texts, keys] = bundle();
  if (!keys[0]) return;
  const stop = new AbortController();
  const alarm = setTimeout(() => stop.abort(), TIMEOUT);
  // A request that outlives the page must not renew the cookie: its answer could come after consent was withdrawn.
  const renew = !leaving && renewable(base) && Date.now() - renewed > RENEW_AFTER;
  if (renew) stored((s) => s.setItem(RENEWED, (renewed = Date.now()) + ''));
  // A retry must not outlive the page: browsers limit the size of all such requests together, and that limit may be why
  // the last try failed.
  const lasts = leaving || (!failures && !renew);
  const request = { keys, lasts, stop };
  open.add(request);
  let failed: unknown = true;
  let delay = 0;
  try {
    trace('mtag: sent', texts);
    // The tag host corrects a wrong clock by t. A string is sent as text/plain, which needs no preflight.
    const response = await fetch(`${base}/${path}/${tag}?t=${Date.now()}` + (renew ? '&renew=1' : ''), {
      method: 'POST', body: texts[1] ? `[${texts}]` : texts[0], keepalive: lasts, credentials: 'include', signal: stop.signal,
    });
    delay = +response.headers.get('retry-after')! * 1e3 || 0;
    // Without this header the answer is not from the tag host but from a captive portal, such as a hotel's, or a proxy.
    if (response.headers.get('mtag')) {
      const answer = await response.json();
      failed = keys.filter((key, i) => {
        const { status = response.status, message } = answer.results ? answer.results[i] : answer;
        if (/^5|408|4[23]1|42[59]/.test(status)) return true;
        if (status >= 400) warn(message, waiting.get(key));
        else wasRecorded(key);
        drop(key);
      })[0];
    }
  } catch {}
  clearTimeout(alarm);
  open.delete(request);
  if (!allowed) setTimeout(erase, 99, sender); // the answer may have renewed the cookie at the last moment
  else if (failed) {
    // Halve the batch and move its events to the end: an event that always fails must not block the others.
    batchLimit = keys.length / 2;
    keys.forEach((key) => {
      const text = waiting.get(key);
      if (text && waiting.delete(key)) waiting.set(key, text);
    });
    const backOff = Math.min(MAX_DELAY, FIRST_DELAY * 2 ** failures++);
    retryAfter = delay > 0;
    later(Math.min(delay, MAX_RETRY_AFTER) + backOff * (0.5 + Math.random() / 2));
  } else {
    batchLimit *= 2;
    failures = 0;
  }
}

// bundle returns the endpoint, the texts and the keys of the events for one request. A request to /id has one event. It
// drops events that are broken, and those older than MAX_AGE, because the tag host might record them a second time.
function bundle(): [path: Path, texts: string[], keys: string[]] {
  const common = Object.assign({ muid }, device());
  const texts: string[] = [];
  const taken: string[] = [];
  let size = 0;
  for (const key of idle()) {
    let fields: { muid?: unknown } | undefined;
    try {
      if (parseInt(key) > Date.now() - MAX_AGE) fields = JSON.parse(waiting.get(key)!);
    } catch {}
    if (!fields) {
      drop(key);
      continue;
    }
    // A muid that the tag host would not accept gives way to the visitor's.
    if (typeof fields.muid != 'string' || !/\S/.test(fields.muid)) delete fields.muid;
    const text = json(Object.assign({}, common, fields));
    size += bytes(text) + 1; // a comma
    if (texts[0] && (isID(key) || size > MAX_BODY || texts.length >= batchLimit)) break;
    texts.push(text);
    taken.push(key);
    if (isID(key)) return ['id', texts, taken];
  }
  return ['mark', texts, taken];
}

// flush sends events in requests that outlive the page, before it closes. Without an answer in time, the next page may
// send them once more.
function flush() {
  for (let n = MAX_LAST; n-- && idle()[0]; ) send(true);
}

// retryNow retries before the timer fires, unless the tag host has set the time with Retry-After.
function retryNow() {
  if (retryAfter && timer) return;
  clearTimeout(timer);
  timer = 0;
  drain();
}

// deliver sends events when the page may close, and retries when that may succeed.
export function deliver() {
  follow(() => withdraw(true));
  addEventListener('pagehide', () => {
    open.forEach((request) => request.lasts || (request.stop.abort(), open.delete(request)));
    flush();
    release();
  });
  document.addEventListener('visibilitychange', () => (document.visibilityState == 'hidden' ? flush() : retryNow()));
  addEventListener('online', retryNow);
}
