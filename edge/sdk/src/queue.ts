// The queue: the events that have no answer from the tag host yet. With consent each event is also in localStorage, so
// that the next page of the site can send it. A write there takes longer than all else that a call does, so events that
// are made together are written together when the calls are done, as the lines of a record. A record is deleted when all
// its events have their answer. Until then the next page may send all of them again, and the tag host records each once.
//
// Email addresses and phone numbers are only in memory: what is stored of such an event is a stripped copy. The tag host records a repeated event once, by its event_id, and the first one counts. So other pages leave a
// stripped copy to the page that has the event in full, for as long as that may be open. Without consent, the queue also
// has the calls that wait for it.

import { drain } from './delivery';
import { kit } from './kit';
import { json, Key, storage, store, type Hidden } from './storage';
import { uuid } from './visitor';
import { safely, tell, warn } from './warn';

const enum Max {
  CHARS = 2e6, // of all texts in the queue; localStorage holds 5 million for each origin
  EVENT = 65200, // bytes without what bundle adds; the tag host accepts 64 KiB with it
}

const enum Is {
  STRIPPED = ' ', // before the JSON of a stripped copy
}

export type Path = 'mark' | 'id';

export interface Entry {
  key_: string; // the time in ms, the path and a random text
  text_: string; // JSON, after a space in a stripped copy
  record_: string; // the record that it belongs to: a key of localStorage; empty before save
  born_: number; // ms of performance.now(): a clock that is put right changes no age. Negative when another page has made it
  told_?: unknown; // the page's callback when the event is recorded
  call_?: (value: any) => void; // what to do with the value when there is consent
  stop_?: () => void; // ends the request that the event is in
  lasts_?: boolean; // that request outlives the page
}

export const waiting = new Map<string, Entry>(); // by key
export let allowed = false; // the visitor consents

let saving: unknown; // drain will run when the running calls are done
let chars = 0; // of all texts in waiting
let prefix = ''; // of the records' names

export const isID = ({ key_ }: Entry) => key_.includes('id-');

// isStripped reports whether the text lacks the email or the phone number that its event was made with.
export const isStripped = (text: string) => text[0] == Is.STRIPPED;

// PERSONAL is what is not stored: fields that are named as such, and whatever looks like an address.
const PERSONAL: Hidden = [/mail|phone|mobile|^tel/i, /[^\s"'<>(),:;=?&/#]{1,64}(@|%40)[\w-]+(\.[\w-]+)+/g];

// strip returns what is stored of an event. The look at its words is quick: most events have nothing personal.
function strip(text: string) {
  try {
    if (kit.hidden) text = text.slice(0, +isStripped(text)) + json(JSON.parse(text), kit.hidden);
    if (/@|%40|mail|phone|mobile|"tel/i.test(text)) {
      const rest = json(JSON.parse(text), PERSONAL);
      if (rest != text) return Is.STRIPPED + rest;
    }
  } catch {} // what is broken is dropped when it would be sent
  return text;
}

export const bytes = (text: string) => new TextEncoder().encode(text).length;

// put adds an event, or a call that waits for consent. It copies the fields, so later changes of them do not matter. It
// throws when JSON.stringify throws or returns undefined.
export function put(path: string, fields: any, then?: unknown, call?: (value: any) => void) {
  const text = json(fields);
  if (chars + text.length > Max.CHARS || text.length * 3 > Max.EVENT && bytes(text) > Max.EVENT) {
    return warn('not sent, too large, or too many wait:', fields.event);
  }
  hold({ key_: Date.now() + path + '-' + uuid(), text_: text, record_: '', born_: performance.now(), told_: then, call_: call });
  saving = saving || Promise.resolve().then(drain).catch(warn);
  if (!call) kit.trace('queued', fields);
}

// hold adds an event in memory only.
function hold(entry: Entry) {
  chars += entry.text_.length;
  waiting.set(entry.key_, entry);
}

// save stores the events that are in no record yet. It runs before the page can be left: at the latest with pagehide. An
// identify is not stored, because it is nothing without its email address or phone number.
export function save() {
  const lines: string[] = [];
  let name = '';
  waiting.forEach((entry) => {
    if (!allowed || entry.call_ || isID(entry) || entry.record_) return;
    entry.record_ = name = name || prefix + entry.key_;
    lines.push(strip(entry.text_));
  });
  saving = 0;
  if (name) store(name, lines.join('\n'));
}

// take adds the events that other pages have left in localStorage. What is broken, or too old, is removed: the tag host
// remembers an event_id for 7 days, and might record an older event a second time.
export function take() {
  const known = records();
  Object.keys(storage).sort().forEach((record) => {
    if (!record.startsWith(prefix) || known.has(record)) return;
    const key = record.slice(prefix.length);
    storage[record].split('\n').forEach((text, i) =>
      hold({ key_: key + '.' + i, text_: text, record_: record, born_: performance.now() - Math.max(0, Date.now() - parseInt(key)) }));
  });
}

// records returns the names of the records whose events wait.
const records = () => new Set([...waiting.values()].map(({ record_ }) => record_));

// unhold removes an event from memory only.
export function unhold({ key_, text_ }: Entry) {
  if (waiting.delete(key_)) chars -= text_.length;
}

// recorded tells the page that the tag host has recorded an event.
export function recorded({ text_, told_ }: Entry) {
  kit.trace('recorded', text_);
  tell(told_);
}

// drop removes events, and the records of which no event waits any more. Other tabs hear of that by the storage event.
export function drop(entries: Entry[]) {
  entries.forEach(unhold);
  const left = records();
  entries.forEach(({ record_ }) => left.has(record_) || delete storage[record_]);
}

// unstore removes the records of this page. What waits is stored anew by save.
export const unstoreAll = () => waiting.forEach(unstore);

function unstore(entry: Entry) {
  delete storage[entry.record_];
  entry.record_ = '';
}

// keep stores the events from now on, makes the calls that have waited for consent, and adds the events that other pages
// have left.
export function keep(tag: string) {
  prefix = Key.PREFIX + tag + '.';
  allowed = true;
  save();
  [...waiting.values()].forEach((entry) => {
    if (!entry.call_) return;
    unhold(entry);
    safely(entry.call_, JSON.parse(entry.text_));
  });
  take();
  if (kit.hidden) {
    unstoreAll(); // other pages may have stored it
    save();
  }
}

// forget removes everything of the tag from localStorage. Another tab removes only what is its own: what is new may be of
// the next visitor. The events of this page stay in memory.
export function forget(elsewhere?: boolean) {
  allowed = false;
  unstoreAll();
  Object.keys(storage).forEach((name) => elsewhere || name.startsWith(Key.PREFIX) && delete storage[name]);
}

// follow calls heard with what other tabs announce, and removes the events that they have sent.
export function follow(heard: (what: any) => void) {
  addEventListener('storage', ({ key, newValue }) => {
    if (key == Key.PREFIX && newValue) heard(JSON.parse(newValue));
    else if (allowed && !newValue) waiting.forEach((entry) => {
      if (entry.record_ != key || isStripped(strip(entry.text_))) return;
      recorded(entry);
      unhold(entry);
    });
  });
}
