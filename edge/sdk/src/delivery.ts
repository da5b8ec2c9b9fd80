// Delivery: sends the events of the queue, retries, and stops at once when consent is withdrawn.

import { forgetVisit } from './attribution';
import { exclusively, release } from './lock';
import { device } from './page';
import { allowed, bytes, drop, follow, forget, isID, isStripped, keep, put, recorded, save, waiting, type Entry, type Path } from './queue';
import { json, Key, storage, store } from './storage';
import { erase, muid, renewable, visitor } from './visitor';
import { trace, warn } from './warn';

const enum Is {
  MAX_BODY = 6e4, // bytes; browsers allow 64 KiB for requests that outlive the page
  MIN_AGE = 6e4, // ms, a minute, of a stripped copy: its page has closed, or fails to send it
  MAX_AGE = 6 * 864e5, // ms, 6 days; the tag host remembers an event_id for 7 days
  TIMEOUT = 3e4, // ms for one request
  PATIENCE = 5e3, // ms after which a request without an answer no longer holds up the others
  POLL = 99, // ms between looks for new events while such a request has no answer
  FIRST_DELAY = 500, // ms before the first retry; each failure doubles it
  MAX_DELAY = 3e4, // ms
  MAX_RETRY_AFTER = 3e5, // ms, 5 minutes
  MAX_LAST = 4, // requests that a closing page makes; the browser refuses more than 64 KiB in all
  RENEW_AFTER = 864e5, // ms, a day
}

const RENEWED = Key.PREFIX + 'renewed'; // when a request last asked the tag host to renew the cookie, in ms

let base = ''; // the address of the tag host
let tag = ''; // the tag id

let draining = false;
let timer = 0; // of the next retry; 0 when none is set
let notBefore = 0; // when Retry-After ends, in ms of performance.now()
let failures = 0; // consecutive
let batchLimit = 1000; // events in the next request; halved by a failure, doubled by a success. MAX_BODY bounds it too
let open = 0; // requests that are under way

const pause = (ms: number) => new Promise<void>((resolve) => setTimeout(resolve, ms));

// idle returns the events that may be sent now: those that are in no request. A closing page also sends the new stripped
// copies, because the visitor may not open another page.
const idle = (leaving?: boolean) => [...waiting.values()].filter(({ key, text, stop }) =>
  allowed && !stop && (leaving || !isStripped(text) || parseInt(key) < Date.now() - Is.MIN_AGE));

// install sets the address of the tag host and the tag.
export function install(address: string, id: string) {
  base = address;
  tag = id;
}

// sender returns the muid of the visitor. It returns '' when consent was withdrawn on another host of the site.
export function sender() {
  const muid = visitor(base);
  if (!muid) withdraw();
  return muid;
}

// whenAllowed calls with the value: now, or with a copy when there is consent. The call may write cookies.
export function whenAllowed<T>(value: T, call: (value: T) => void) {
  if (allowed && sender()) call(value);
  else put('', value, 0, (value) => whenAllowed(value, call)); // consent may be withdrawn again before that
}

// consented begins to store and send the events.
export function consented() {
  keep(tag);
  retryNow();
}

// abort ends all requests. With leaving, those that outlive the page go on.
export const abort = (leaving?: boolean) =>
  waiting.forEach((entry) => {
    if (entry.stop && !(leaving && entry.lasts)) entry.stop = entry.stop.abort()!;
  });

// withdraw aborts all requests, and removes what the tag has stored. The events wait in memory. When consent was withdrawn
// elsewhere, in another tab, the cookies may already be a new visitor's: then they stay.
export function withdraw(elsewhere?: boolean) {
  forget(elsewhere);
  abort();
  forgetVisit();
  erase(elsewhere ? muid : undefined);
}

// add queues an event of the visitor. It is called by whenAllowed.
export function add(path: Path, fields: object, then?: unknown) {
  put(path, Object.assign({ muid }, fields), then);
  drain();
}

// drain takes the lock, and sends events until the queue is empty or a request fails. Without the lock it tries later. It
// makes one request at a time, but a request that has no answer after PATIENCE no longer holds up the other events.
async function drain() {
  const pending = () => !timer && idle()[0];
  if (draining || !pending()) return;
  draining = true;
  await 0; // events that are made together go in one request
  const locked = await exclusively(async () => {
    while (pending() || open) await (pending() ? Promise.race([send(), pause(Is.PATIENCE)]) : pause(Is.POLL));
  });
  draining = false;
  if (!locked) later(Is.FIRST_DELAY);
  drain(); // for events that were added after the last request; it returns when a retry is set
}

// later sets the timer. In a document that was replaced or removed, scripts still run but setTimeout returns 0. There
// timer becomes -1, so that drain sees a timer. Otherwise it would retry in an endless loop.
function later(ms: number) {
  clearTimeout(timer);
  timer = setTimeout(() => {
    notBefore = 0;
    retryNow();
  }, ms) || -1;
}

// send makes one request of the first events. When it fails, it sets the timer.
async function send(leaving?: boolean) {
  const from = sender();
  if (!from) return;
  const [batch, texts] = bundle(leaving);
  if (!batch[0]) return;
  const stop = new AbortController();
  setTimeout(() => stop.abort(), Is.TIMEOUT);
  // A request that outlives the page must not renew the cookie: its answer could come after consent was withdrawn.
  const renew = !leaving && renewable(base) && !(Date.now() - +storage[RENEWED] < Is.RENEW_AFTER);
  if (renew) store(RENEWED, Date.now() + '');
  // A retry must not outlive the page: browsers limit the size of all such requests together, and that limit may be why
  // the last try failed.
  const lasts = leaving || (!failures && !renew);
  batch.forEach((entry) => Object.assign(entry, { stop, lasts }));
  open++;
  let failed: unknown = true;
  let delay = 0;
  try {
    trace('sent', texts);
    // The tag host corrects a wrong clock by t. A string is sent as text/plain, which needs no preflight.
    const response = await fetch(`${base}/${isID(batch[0].key) ? 'id' : 'mark'}/${tag}?t=${Date.now()}` + (renew ? '&renew=1' : ''), {
      method: 'POST', body: texts[1] ? `[${texts}]` : texts[0], keepalive: lasts, credentials: 'include', signal: stop.signal,
    });
    delay = Math.min(+response.headers.get('retry-after')! * 1e3 || 0, Is.MAX_RETRY_AFTER);
    // Without this header the answer is not from the tag host but from a captive portal, such as a hotel's, or a proxy.
    if (response.headers.get('mtag')) {
      const answer = await response.json();
      const answered = batch.filter((entry, i) => {
        const { status = response.status, message } = answer.results ? answer.results[i] : answer;
        if (/^5|408|4[23]1|42[59]/.test(status)) return;
        if (status >= 400) warn(message, entry.text);
        else recorded(entry);
        return true;
      });
      drop(answered);
      failed = batch[answered.length];
    }
  } catch {}
  open--;
  batch.forEach((entry) => {
    if (entry.stop == stop) entry.stop = undefined;
    // An event that always fails moves to the end: it must not block the others.
    if (failed && waiting.delete(entry.key)) waiting.set(entry.key, entry);
  });
  if (!allowed) setTimeout(erase, 99, from); // the answer may have renewed the cookie at the last moment
  else if (failed) {
    batchLimit = batch.length / 2;
    notBefore = performance.now() + delay;
    later(delay + Math.min(Is.MAX_DELAY, Is.FIRST_DELAY * 2 ** failures++) * (0.5 + Math.random() / 2));
  } else {
    batchLimit *= 2;
    failures = 0;
  }
}

// bundle returns the events for one request, and their texts. An event without an event_id gets its key, so that a retry
// is recorded once. A request to /id has one event. bundle drops events that are broken, and those older than MAX_AGE,
// because the tag host might record them a second time.
function bundle(leaving?: boolean): [Entry[], string[]] {
  const common = Object.assign({ muid }, device());
  const batch: Entry[] = [];
  const texts: string[] = [];
  const dead: Entry[] = [];
  let size = 0;
  for (const entry of idle(leaving)) {
    let text = '';
    try {
      const fields = JSON.parse(entry.text);
      // A muid that the tag host would not accept gives way to the visitor's.
      if (typeof fields.muid != 'string' || !fields.muid.trim()) delete fields.muid;
      text = json(Object.assign({}, common, isID(entry.key) || { event_id: entry.key }, fields));
    } catch {}
    if (!text || parseInt(entry.key) < Date.now() - Is.MAX_AGE) {
      dead.push(entry);
      continue;
    }
    size += bytes(text) + 1; // a comma
    if (texts[0] && (isID(entry.key + batch[0].key) || size > Is.MAX_BODY || texts.length >= batchLimit)) break;
    texts.push(text);
    batch.push(entry);
  }
  if (dead[0]) drop(dead);
  return [batch, texts];
}

// flush sends events in requests that outlive the page, before it closes. Without an answer in time, the next page may
// send them once more.
function flush() {
  save();
  for (let n = Is.MAX_LAST; n-- && idle(true)[0]; ) send(true);
}

// retryNow retries before the timer fires, unless the tag host has set the time with Retry-After.
function retryNow() {
  if (performance.now() < notBefore) return;
  clearTimeout(timer);
  timer = 0;
  drain();
}

// deliver sends events when the page may close, and retries when that may succeed.
export function deliver() {
  follow(() => withdraw(true));
  addEventListener('pagehide', () => {
    abort(true);
    flush();
    release();
  });
  document.addEventListener('visibilitychange', () => (document.visibilityState == 'hidden' ? flush() : retryNow()));
  addEventListener('online', retryNow);
}
