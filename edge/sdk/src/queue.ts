// The queue: the events that have no answer from the tag host yet. With consent each event is also in localStorage, so
// that the next page of the site can send it. Email addresses and phone numbers are only in memory. The tag host records a
// repeated event once, by its event_id.

import { json, PREFIX, stored } from './storage';
import { tell, trace, warn } from './warn';

const MAX_CHARS = 2e6; // of all events in the queue; localStorage holds 5 million for each origin
const MAX_EVENT = 65200; // bytes without what bundle adds; the tag host accepts 64 KiB with it

export type Path = 'mark' | 'id';

// The events as JSON texts without the muid. A key is the time in ms, the path and a random number.
export const waiting = new Map<string, string>();
let chars = 0; // of all texts in waiting
let full = false; // the console says so

const callbacks = new Map<string, unknown>(); // by key, of events that the page wants to hear of

let prefix = ''; // of the queue's keys in localStorage; empty before init
let keeping = false; // the events are in localStorage too

export const isID = (key: string) => key.includes('id');

export const bytes = (text: string) => new TextEncoder().encode(text).length;

// put adds an event, and returns false when it is too large or the queue is full. It copies the fields, so later changes
// of them do not matter. It throws when JSON.stringify throws or returns undefined.
export function put(path: Path, fields: object & { event?: unknown }, recorded?: unknown) {
  const text = json(fields);
  if (text.length * 3 > MAX_EVENT && bytes(text) > MAX_EVENT) return warn('too large, not sent:', fields.event);
  if (chars + text.length > MAX_CHARS) {
    return full || warn('queue is full, new events are dropped', (full = true));
  }
  const key = Date.now() + path + Math.random();
  hold(key, text);
  trace('mtag: queued', fields);
  callbacks.set(key, recorded);
  save(text, key);
  return true;
}

// hold adds an event in memory only.
function hold(key: string, text: string) {
  if (waiting.has(key)) return;
  chars += text.length;
  waiting.set(key, text);
}

// save stores an event without email addresses and phone numbers, which must not lie on the device. An identify is
// nothing without them.
function save(text: string, key: string) {
  if (!keeping || isID(key)) return;
  if (/"(email|phone)"/.test(text)) {
    text = json(JSON.parse(text), (name, value) => (/^(email|phone)$/.test(name) ? undefined : value));
  }
  stored((s) => s.setItem(prefix + key, text));
}

// unhold removes an event from memory only.
function unhold(key: string) {
  chars -= (waiting.get(key) || '').length;
  waiting.delete(key);
}

// wasRecorded tells the page that the tag host has recorded an event.
export function wasRecorded(key: string) {
  trace('mtag: recorded', waiting.get(key));
  tell(callbacks.get(key));
  callbacks.delete(key);
}

// drop removes an event. Other tabs hear of it by the storage event.
export function drop(key: string) {
  unhold(key);
  full = false;
  stored((s) => s.removeItem(prefix + key));
}

// keep stores the events from now on, and adds those that other pages have left in localStorage.
export function keep(tag: string) {
  prefix = PREFIX + tag + '.';
  keeping = true;
  waiting.forEach(save);
  stored((s) => Object.keys(s).sort().forEach((name) => {
    if (name.startsWith(prefix)) hold(name.slice(prefix.length), s.getItem(name)!);
  }));
}

// forget removes everything of the tag from localStorage, and tells the other tabs that consent was withdrawn, unless one
// of them has told this one. The events of this page stay in memory.
export function forget(told?: boolean) {
  keeping = false;
  stored((s) => {
    // The other tab may not have seen the newest ones yet.
    if (told) return waiting.forEach((_, key) => s.removeItem(prefix + key));
    s.setItem(PREFIX, 'withdrawn');
    Object.keys(s).forEach((name) => name.startsWith(PREFIX) && s.removeItem(name));
  });
}

// follow keeps the queue as other tabs change it. It calls withdrawn when one of them has withdrawn consent.
export function follow(withdrawn: () => void) {
  addEventListener('storage', ({ key, newValue }) => {
    if (key == PREFIX && newValue) withdrawn();
    else if (keeping && key && key.startsWith(prefix)) {
      key = key.slice(prefix.length);
      if (newValue) hold(key, newValue);
      else {
        wasRecorded(key);
        unhold(key);
      }
    }
  });
}
