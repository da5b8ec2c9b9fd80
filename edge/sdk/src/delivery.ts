// Delivery: sends the events of the queue, retries, and stops at once when consent is withdrawn.

import { Visit } from './choice';
import { now, safely, soon, warn } from './warn';
import { kit } from './kit';
import { erase, muid, read, sender } from './visitor';
import { base, prefix, tag } from './parts';
import { put, save, unhold, type Entry } from './queue';
import { Key, keys, storage } from './storage';
import { settle } from './page';

const enum Is {
  MAX_BODY = 6e4, // characters
  MAX_LAST_BODY = 2e4, // characters, of up to 3 bytes; browsers allow 64 KiB for requests that outlive the page
  TIMEOUT = 3e4, // ms for one request
  MAX_OPEN = 1, // other requests at a time: one without an answer must not hold up the others
  FIRST_DELAY = 250, // ms before the first retry, or up to twice as long; each failure doubles it
  MAX_DELAY = 3e4, // ms
  MAX_RETRY_AFTER = 3e5, // ms, 5 minutes
  LATE = 99, // ms that a timer comes later than the time for which it is set, because clocks are rounded
}

let open = 0; // requests that are under way
let due: number; // when the next request may be made, in ms of performance.now()
let notBefore: number; // when Retry-After ends, likewise
let failures = 0; // consecutive; after one, a request has one event, so that an event that always fails does not block others

// whenAllowed calls with the value: now, or with a copy when there is consent. The call may write cookies.
export const whenAllowed = <T>(value: T, call: (value: T) => void): void =>
  sender() ? call(value) : put('', value, (value) => whenAllowed(value, call)); // consent may be withdrawn again before that

// abort ends all requests, but not the last ones of a closing page.
kit.abort_ = () => [...kit.waiting_].map((entry) => entry.request_ && entry.request_.abort());

// withdraw aborts all requests, and removes what the tag has stored. The events wait in memory. When consent was withdrawn
// elsewhere, in another tab, the cookies may already be a new visitor's: then they stay.
export const withdraw = (elsewhere?: unknown): void => {
  kit.allowed_ = 0;
  kit.abort_();
  kit.visit_(Visit.FORGET);
  erase(elsewhere && muid);
  kit.unstore_();
  if (!elsewhere) keys(Key.PREFIX).map((name) => delete storage()[name]);
};

// add queues an event of the visitor. It is called by whenAllowed. Without a muid that is a text, the event gets the visitor's:
// the tag host refuses a number.
export const add = (path: string, fields: any, then?: () => void) =>
  put(path, {
    language: navigator.language,
    screen: screen.width + 'x' + screen.height,
    timezone: kit.timezone_,
    ...fields,
    muid: (fields.muid || 0).trim ? fields.muid : muid,
  }, then);

// next removes the events for one request from the list, and returns them. A request to /id has one event, and so has the
// one after a failure.
const next = (list: Entry[], max: number, batch: Entry[] = []) => {
  while (list[0] && (!batch[0] || !failures && batch[0].path_ + list[0].path_ == 'markmark' && max > list[0].text_.length)) {
    max -= list[0].text_.length;
    batch.push(list.shift()!);
  }
  return batch;
};

// address returns where events are sent. The tag host corrects a wrong clock by t.
const address = (batch: Entry[]) => base + '/' + batch[0].path_ + '/' + tag + '?t=' + Date.now();

// render returns the body of a request, which the browser makes a text: text/plain needs no preflight.
const render = (batch: Entry[], texts: any = batch.map((entry) => entry.text_)) => batch[1] ? '[' + texts + ']' : texts;

// idle returns the events to send. It looks at the cookie only when there are some, because that is slow.
const idle = (leaving?: boolean) =>
  kit.waiting_.size && sender() ? [...kit.waiting_].filter((entry) => !entry.request_ || leaving) : [];

// drain makes a request of the first events, unless a retry is not due yet. When the request fails, it sets when to retry. If
// the page's timers never fire, the next event triggers the retry. If the page has broken XMLHttpRequest, events are sent when
// the page closes. Tabs send by themselves: what two of them send is recorded once. After pagehide, an event is of an unload
// handler.
export const drain = () => safely(() => {
  if (kit.left_) return flush();
  if (open > Is.MAX_OPEN || now() < due) return;
  const batch = next(idle(), Is.MAX_BODY);
  if (!batch[0]) return;
  const xhr = new XMLHttpRequest();
  open++;
  // abort calls it too
  xhr.onloadend = () => {
    let answer: any;
    let failed: unknown;
    // Without this header the answer is not from the tag host but from a captive portal, such as a hotel's, or a proxy.
    safely(() => xhr.getResponseHeader('mtag') && (answer = JSON.parse(xhr.responseText)));
    batch.map((entry, i) => {
      entry.request_ = 0;
      const result = answer && answer.results ? answer.results[i] : answer;
      const status = result && (result.status || xhr.status);
      if (!status || /^5|4(08|2[159]|31)/.test(status)) {
        return kit.waiting_.delete(entry) && kit.waiting_.add((failed = entry)); // moves it to the end
      }
      unhold(entry);
      // The storage event tells other tabs of the deletion.
      --kit.records_[entry.record_] || delete storage()[entry.record_];
      if (status < 400) kit.recorded_(entry);
      else warn(result.message, JSON.parse(entry.text_).event); // its fields may be personal
    });
    open--;
    if (failed) {
      save(); // a part that it needs may have failed too
      due = (notBefore = now() + Math.min(Is.MAX_RETRY_AFTER, (xhr.getResponseHeader('retry-after') as any) * 1e3 || 0)) +
        Math.min(Is.MAX_DELAY, Is.FIRST_DELAY * 2 ** (failures++ + Math.random()));
      soon(drain, due - now() + Is.LATE);
    } else failures = 0;
    drain();
  };
  batch.map((entry) => (entry.request_ = xhr));
  // The answer may renew the cookie: the request ends with the page, and when consent is withdrawn.
  xhr.open('POST', address(batch) + kit.renew_);
  kit.renew_ = '';
  xhr.withCredentials = 1 as any; // true, in a byte less
  xhr.timeout = Is.TIMEOUT;
  xhr.send(render(batch));
});

// flush sends events in requests that outlive the page, before it closes, until the browser takes no more: it allows 64 KiB.
// No script gets the answers, so the next page sends the events again; the tag host records each once. Also after a failure
// the requests are few: the browser would send many one after the other, later than a withdrawal in another tab.
export const flush = () => safely(() => {
  settle();
  save();
  failures = 0;
  const list = idle(true);
  for (let batch; list[0] && navigator.sendBeacon(address((batch = next(list, Is.MAX_LAST_BODY))), render(batch)); );
});

// retryNow sends what waits and what other tabs of the host have left. With hurry it retries before it is due, unless the tag
// host has set the time with Retry-After.
kit.retryNow_ = (hurry?: unknown) => {
  if (hurry) due = notBefore;
  if (base) {
    save();
    const left = keys(kit.allowed_ || read() ? prefix : Key.PREFIX).filter((name) => !kit.records_[name]);
    if (left[0]) kit.take_(left);
  }
  drain();
};
