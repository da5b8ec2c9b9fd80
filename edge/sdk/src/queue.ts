// The queue: the events that have no answer from the tag host yet. With consent each event is also in localStorage, so
// that the next page of the site can send it. A write there takes longer than all else that a call does, so events that
// are made together are written together when the calls are done, as the lines of a record. A record is deleted when all
// its events have their answer. Until then the next page may send all of them again, and the tag host records each once.
//
// Email addresses and phone numbers are only in memory: what is stored of such an event is a stripped copy, in a record of
// its own. The tag host records a repeated event once, by its event_id, and the first one counts. So other pages leave a
// stripped copy to the page that has the event in full, for as long as that may be open. Without consent, the queue also
// has the calls that wait for it.

import { json, Key, storage, store } from './storage';
import { safely, tell, trace, warn } from './warn';

const enum Max {
  CHARS = 2e6, // of all texts in the queue; localStorage holds 5 million for each origin
  EVENT = 65200, // bytes without what bundle adds; the tag host accepts 64 KiB with it
  RECORD = 2e4, // of all texts in a record, without the last
}

const enum Is {
  STRIPPED = ' ', // before the JSON of a stripped copy
}

export type Path = 'mark' | 'id';

export interface Entry {
  key: string; // the time in ms, the path and a random number
  text: string; // JSON, after a space in a stripped copy
  record: string; // the record that it belongs to: a key of localStorage; empty before save
  told?: unknown; // the page's callback when the event is recorded
  call?: (value: any) => void; // what to do with the value when there is consent
  stop?: AbortController; // of the request that the event is in
  lasts?: boolean; // that request outlives the page
}

export const waiting = new Map<string, Entry>(); // by key
export let allowed = false; // the visitor consents

let saving: unknown; // save will run when the running calls are done
let chars = 0; // of all texts in waiting
let full = false; // the console says so
let prefix = ''; // of the records' names

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
  hold({ key: Date.now() + path + Math.random(), text, record: '', told: then, call });
  saving = saving || Promise.resolve().then(save);
  if (!call) trace('queued', fields);
}

// hold adds an event in memory only.
function hold(entry: Entry) {
  chars += entry.text.length;
  waiting.set(entry.key, entry);
}

// save stores the events that are in no record yet; with all, the others too. It runs before the page can be left: at the
// latest with pagehide. An identify is not stored, because it is nothing without its email address or phone number.
export function save(all?: unknown) {
  const lines: Record<string, string[]> = {}; // of the records to write
  let name = ''; // of the record that the next event goes to
  let size = Infinity; // of that record
  saving = 0;
  if (allowed) waiting.forEach((entry) => {
    const { key, text, call } = entry;
    if (call || isID(key) || (entry.record && !all)) return;
    const kept = isPersonal(text) ? Is.STRIPPED + json(JSON.parse(text), /^(email|phone)$/) : text;
    if (!entry.record) {
      if (isStripped(kept) || size > Max.RECORD) {
        name = prefix + key;
        size = 0;
      }
      size += isStripped(kept) ? Infinity : kept.length;
      entry.record = name;
    }
    (lines[entry.record] = lines[entry.record] || []).push(kept);
  });
  Object.keys(lines).forEach((name) => store(name, lines[name].join('\n')));
}

// load adds the events of a record that another page has stored.
const load = (record: string, lines: string) =>
  lines.split('\n').forEach((text, i) => hold({ key: record.slice(prefix.length) + '.' + i, text, record }));

// records returns the names of the records whose events wait.
const records = () => new Set([...waiting.values()].map(({ record }) => record));

// unhold removes an event from memory only.
export function unhold({ key, text }: Entry) {
  if (waiting.delete(key)) chars -= text.length;
}

// recorded tells the page that the tag host has recorded an event.
export function recorded({ text, told }: Entry) {
  trace('recorded', text);
  tell(told);
}

// drop removes events, and the records of which no event waits any more. Other tabs hear of that by the storage event.
export function drop(entries: Entry[]) {
  entries.forEach(unhold);
  full = false;
  const left = records();
  entries.forEach(({ record }) => left.has(record) || delete storage[record]);
}

// keep stores the events from now on, makes the calls that have waited for consent, and adds the events that other pages
// have left in localStorage.
export function keep(tag: string) {
  prefix = Key.PREFIX + tag + '.';
  allowed = true;
  save(true);
  [...waiting.values()].forEach((entry) => {
    if (!entry.call) return;
    unhold(entry);
    safely(entry.call, JSON.parse(entry.text));
  });
  const known = records();
  Object.keys(storage).sort().forEach((name) => {
    if (name.startsWith(prefix) && !known.has(name)) load(name, storage[name]);
  });
}

// forget removes everything of the tag from localStorage, and tells the other tabs that consent was withdrawn, unless one
// of them has told this one. The events of this page stay in memory.
export function forget(told?: boolean) {
  allowed = false;
  // The other tab may not have seen the newest ones yet.
  if (told) return records().forEach((name) => delete storage[name]);
  store(Key.PREFIX, '1');
  Object.keys(storage).forEach((name) => name.startsWith(Key.PREFIX) && delete storage[name]);
}

// follow keeps the queue as other tabs change it. It calls withdrawn when one of them has withdrawn consent.
export function follow(withdrawn: () => void) {
  addEventListener('storage', ({ key, newValue }) => {
    if (key == Key.PREFIX && newValue) withdrawn();
    else if (allowed && key && key.startsWith(prefix)) {
      if (newValue) return isStripped(newValue) || records().has(key) || load(key, newValue);
      waiting.forEach((entry) => {
        if (entry.record != key || isPersonal(entry.text)) return;
        recorded(entry);
        unhold(entry);
      });
    }
  });
}
