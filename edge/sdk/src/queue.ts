// The queue: the events that have no answer from the tag host yet. With consent each event is also in localStorage, so
// that the next page of the site can send it. Email addresses and phone numbers are only in memory: what is stored of such
// an event is a stripped copy. The tag host records a repeated event once, by its event_id, and the first one counts. So
// other pages leave a stripped copy to the page that has the event in full, for as long as that may be open. Without
// consent, the queue also has the calls that wait for it.

import { json, Key, storage, store } from './storage';
import { safely, tell, trace, warn } from './warn';

const enum Max {
  CHARS = 2e6, // of all texts in the queue; localStorage holds 5 million for each origin
  EVENT = 65200, // bytes without what bundle adds; the tag host accepts 64 KiB with it
}

const enum Is {
  STRIPPED = ' ', // before the JSON of a stripped copy
}

export type Path = 'mark' | 'id';

export interface Entry {
  key: string; // the time in ms, the path and a random number
  text: string; // JSON, after a space in a stripped copy
  told?: unknown; // the page's callback when the event is recorded
  call?: (value: any) => void; // what to do with the value when there is consent
  stop?: AbortController; // of the request that the event is in
  lasts?: boolean; // that request outlives the page
}

export const waiting = new Map<string, Entry>(); // by key
export let allowed = false; // the visitor consents

let chars = 0; // of all texts in waiting
let full = false; // the console says so
let prefix = ''; // of the queue's keys in localStorage

export const isID = (key: string) => key.includes('id');

// isStripped reports whether the text lacks the email or the phone number that its event was made with.
export const isStripped = (text: string) => text[0] == Is.STRIPPED;

const isPersonal = (text: string) => /"(email|phone)"/.test(text);

export const bytes = (text: string) => new TextEncoder().encode(text).length;

// put adds an event, or a call that waits for consent. It copies the fields, so later changes of them do not matter. It
// throws when JSON.stringify throws or returns undefined.
export function put(path: string, fields: any, then?: unknown, call?: (value: any) => void) {
  const text = json(fields);
  if (text.length > Max.EVENT / 3 && bytes(text) > Max.EVENT) return warn('not sent, too large:', fields.event);
  if (chars + text.length > Max.CHARS) return full || warn('not sent, queue is full', (full = true));
  const entry = { key: Date.now() + path + Math.random(), text, told: then, call };
  hold(entry);
  save(entry);
  if (!call) trace('queued', fields);
}

// hold adds an event in memory only.
function hold(entry: Entry) {
  if (waiting.has(entry.key)) return;
  chars += entry.text.length;
  waiting.set(entry.key, entry);
}

// save stores an event, or its stripped copy. An identify is nothing without its email address or phone number.
function save({ key, text }: Entry) {
  if (!allowed || isID(key)) return;
  store(prefix + key, isPersonal(text) ? Is.STRIPPED + json(JSON.parse(text), /^(email|phone)$/) : text);
}

// unhold removes an event from memory only.
export function unhold({ key, text }: Entry) {
  if (waiting.delete(key)) chars -= text.length;
}

// recorded tells the page that the tag host has recorded an event.
export function recorded({ text, told }: Entry) {
  trace('recorded', text);
  tell(told);
}

// drop removes an event. Other tabs hear of it by the storage event.
export function drop(entry: Entry) {
  unhold(entry);
  full = false;
  delete storage[prefix + entry.key];
}

// keep stores the events from now on, makes the calls that have waited for consent, and adds the events that other pages
// have left in localStorage.
export function keep(tag: string) {
  prefix = Key.PREFIX + tag + '.';
  allowed = true;
  [...waiting.values()].forEach((entry) => {
    if (!entry.call) return save(entry);
    unhold(entry);
    safely(entry.call, JSON.parse(entry.text));
  });
  Object.keys(storage).sort().forEach((name) => {
    if (name.startsWith(prefix)) hold({ key: name.slice(prefix.length), text: storage[name] });
  });
}

// forget removes everything of the tag from localStorage, and tells the other tabs that consent was withdrawn, unless one
// of them has told this one. The events of this page stay in memory.
export function forget(told?: boolean) {
  allowed = false;
  // The other tab may not have seen the newest ones yet.
  if (told) return waiting.forEach(({ key }) => delete storage[prefix + key]);
  store(Key.PREFIX, 'withdrawn');
  Object.keys(storage).forEach((name) => name.startsWith(Key.PREFIX) && delete storage[name]);
}

// follow keeps the queue as other tabs change it. It calls withdrawn when one of them has withdrawn consent.
export function follow(withdrawn: () => void) {
  addEventListener('storage', ({ key, newValue }) => {
    if (key == Key.PREFIX && newValue) withdrawn();
    else if (allowed && key && key.startsWith(prefix)) {
      key = key.slice(prefix.length);
      const entry = waiting.get(key);
      if (newValue) isStripped(newValue) || hold({ key, text: newValue });
      else if (entry && !isPersonal(entry.text)) {
        recorded(entry);
        unhold(entry);
      }
    }
  });
}
