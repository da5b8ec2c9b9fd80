// Delivery: sends the events of the queue, retries, and stops at once when consent is withdrawn.

import { Visit } from './choice';
import { kit } from './kit';
import { device } from './page';
import { allowed, bytes, drop, forget, isID, isStripped, keep, put, recorded, save, take, waiting, type Entry, type Path } from './queue';
import { json, Key, storage, store } from './storage';
import { erase, muid, renewable, visitor } from './visitor';
import { soon, warn } from './warn';

const enum Is {
  MAX_BODY = 6e4, // bytes; browsers allow 64 KiB for requests that outlive the page
  MIN_AGE = 6e4, // ms, a minute, of a stripped copy: its page has closed, or fails to send it
  MAX_AGE = 6 * 864e5, // ms, 6 days; the tag host remembers an event_id for 7 days
  TIMEOUT = 3e4, // ms for one request
  MAX_OPEN = 2, // requests at a time: one without an answer must not hold up the others
  FIRST_DELAY = 500, // ms before the first retry; each failure doubles it
  MAX_DELAY = 3e4, // ms
  MAX_RETRY_AFTER = 3e5, // ms, 5 minutes
  RENEW_AFTER = 864e5, // ms, a day
  MAX_LAST = 4, // requests that a closing page makes; the browser refuses more than 64 KiB in all
  LATE = 99, // ms that a timer comes later than the time for which it is set, because clocks are rounded
}

let base = ''; // the address of the tag host
let tag = ''; // the tag id

let open = 0; // requests that are under way
let due = 0; // when the next request may be made, in ms of performance.now()
let notBefore = 0; // when Retry-After ends, likewise
let failures = 0; // consecutive
let batchLimit = 1000; // events in the next request; halved by a failure, doubled by a success. MAX_BODY bounds it too
let left = false; // after pagehide

const now = () => performance.now();

// idle returns the events that may be sent now: those that are in no request. A closing page also sends the others, and
// the new stripped copies, because the visitor may not open another page.
const idle = (leaving?: boolean) => allowed ? [...waiting.values()].filter(({ text_, born_, stop_, lasts_ }) =>
  leaving ? !lasts_ : !stop_ && (!isStripped(text_) || born_ < now() - Is.MIN_AGE)) : [];

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

// abort ends all requests, but not the last ones of a closing page.
export const abort = () => waiting.forEach(({ stop_ }) => stop_ && stop_());

// withdraw aborts all requests, and removes what the tag has stored. The events wait in memory. When consent was withdrawn
// elsewhere, in another tab, the cookies may already be a new visitor's: then they stay.
export function withdraw(elsewhere?: boolean) {
  forget(elsewhere);
  abort();
  kit.visit(Visit.FORGET);
  erase(elsewhere ? muid : undefined);
}

// add queues an event of the visitor. It is called by whenAllowed.
export const add = (path: Path, fields: object, then?: unknown) => put(path, Object.assign({ muid }, fields), then);

// drain stores and sends what waits, but sends nothing before a retry is due. Tabs send by themselves: what two of them
// send is recorded once. After pagehide, an event is of an unload handler.
export function drain() {
  save();
  if (left) flush();
  else if (open < Is.MAX_OPEN && now() >= due) send();
}

// send makes one request of the first events. When it fails, it sets when to retry. Where the timer never fires, the next
// event is a retry.
function send() {
  const list = idle();
  const from = list[0] && sender();
  if (!from) return;
  const [batch, url, body] = bundle(list);
  if (!batch[0]) return;
  let xhr: XMLHttpRequest;
  let sent = false; // by XMLHttpRequest: a beacon has no answer, and says nothing about its events
  const stop = () => xhr.abort(); // calls answered
  const answered = () => {
    if (!batch[0]) return;
    let done: Entry[] = [];
    let delay = 0;
    try {
      delay = Math.min(+xhr.getResponseHeader('retry-after')! * 1e3 || 0, Is.MAX_RETRY_AFTER);
      // Without this header the answer is not from the tag host but from a captive portal, such as a hotel's, or a proxy.
      if (xhr.getResponseHeader('mtag')) {
        const answer = JSON.parse(xhr.responseText);
        done = batch.filter((entry, i) => {
          const { status = xhr.status, message } = answer.results ? answer.results[i] : answer;
          if (/^5|408|4[23]1|42[59]/.test(status)) return;
          if (status >= 400) warn(message, entry.text_);
          else recorded(entry);
          return true;
        });
      }
    } catch {}
    drop(done);
    const count = batch.length;
    const failed = batch[done.length];
    batch.splice(0).forEach((entry) => {
      entry.stop_ = undefined;
      // An event that always fails moves to the end: it must not block the others.
      if (failed && waiting.delete(entry.key_)) waiting.set(entry.key_, entry);
    });
    open--;
    if (!allowed) return soon(() => erase(from), Is.LATE); // the answer may have renewed the cookie at the last moment
    batchLimit *= 2;
    failures *= +!!failed;
    if (failed) {
      if (sent) batchLimit = count / 2;
      notBefore = now() + delay;
      delay += Math.min(Is.MAX_DELAY, Is.FIRST_DELAY * 2 ** failures++) * (0.5 + Math.random() / 2);
      due = now() + delay;
      soon(drain, delay + Is.LATE);
    }
    drain();
  };
  open++;
  batch.forEach((entry) => (entry.stop_ = stop));
  kit.trace('sent', body);
  try {
    xhr = new XMLHttpRequest();
    xhr.onloadend = answered;
    // The answer may renew the cookie: the request ends with the page, and when consent is withdrawn.
    const renew = renewable(base) && !(Date.now() - +storage[Key.RENEWED] < Is.RENEW_AFTER);
    if (renew) store(Key.RENEWED, Date.now() + '');
    xhr.open('POST', url + (renew ? '&renew=1' : ''));
    xhr.withCredentials = true;
    xhr.timeout = Is.TIMEOUT;
    xhr.send(body); // as text/plain, which needs no preflight
    sent = true;
  } catch {
    last(url, body);
    answered();
  }
}

// last makes a request that outlives the page. Nobody hears the answer: what was recorded is sent again later, and not
// recorded twice.
function last(url: string, body: string) {
  try {
    navigator.sendBeacon(url, body) || fetch(url, { method: 'POST', body, keepalive: true, credentials: 'include' }).catch(() => {});
  } catch {}
}

// bundle takes from a list the events for one request. It returns them, the address and the body. A request to /id has one
// event. bundle drops events that are broken, and those older than MAX_AGE, because the tag host might record them a second
// time.
function bundle(list: Entry[]): [Entry[], string, string] {
  const common = Object.assign({ muid }, device());
  const batch: Entry[] = [];
  const texts: string[] = [];
  let size = 0;
  for (let entry; (entry = list[0]); list.shift()) {
    let text = '';
    try {
      const fields = JSON.parse(entry.text_);
      // A muid that the tag host would not accept gives way to the visitor's.
      if (typeof fields.muid != 'string' || !fields.muid.trim()) delete fields.muid;
      text = json(Object.assign({}, common, fields), kit.hidden);
    } catch {}
    if (!text || entry.born_ < now() - Is.MAX_AGE) {
      drop([entry]);
      warn('not sent, broken or too old:', entry.key_);
      continue;
    }
    size += bytes(text) + 1; // a comma
    if (texts[0] && (isID(entry) || isID(batch[0]) || size > Is.MAX_BODY || texts.length >= batchLimit)) break;
    texts.push(text);
    batch.push(entry);
  }
  // The tag host corrects a wrong clock by t.
  return [batch, `${base}/${batch[0] && isID(batch[0]) ? 'id' : 'mark'}/${tag}?t=${Date.now()}`, texts[1] ? `[${texts}]` : texts[0]];
}

// flush sends events in requests that outlive the page, before it closes. The next page may send them once more.
function flush() {
  save();
  const list = idle(true);
  list.forEach((entry) => (entry.lasts_ = true));
  for (let n = Is.MAX_LAST; n-- && list[0] && sender(); ) {
    const [batch, url, body] = bundle(list);
    if (batch[0]) last(url, body);
  }
}

// retryNow retries before it is due, unless the tag host has set the time with Retry-After. It sends what other tabs of
// the host have left, too.
function retryNow() {
  due = notBefore;
  waiting.forEach((entry) => (entry.lasts_ = false));
  if (allowed) take();
  drain();
}

// deliver sends events when the page may close, and retries when that may succeed.
export function deliver() {
  addEventListener('pagehide', () => {
    left = true;
    abort();
    flush();
  });
  addEventListener('pageshow', () => (left = false));
  document.addEventListener('visibilitychange', () => (document.visibilityState == 'hidden' ? flush() : retryNow()));
  addEventListener('online', retryNow);
}
