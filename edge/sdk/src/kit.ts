// The kit has the functions and values that parts of the tag use and replace. A part is a separate script, perhaps of
// another version. So the short names of kit and Entry must be the same in all versions: add to names.json, never change it.

import { load } from './parts';
import { tell } from './warn';
import type { Entry } from './queue';

const backlog = () => load('backlog');

export const kit: Record<string, any> & {
  allowed_?: number; // 1 when the visitor consents
  left_?: number; // 1 after pagehide
  consent_?: Record<string, string>; // the categories that the page has stated; undefined before that
  replacer_?: (this: any, name: string, value: any) => any; // for JSON.stringify, for everything that is stored or sent
  waiting_: Set<Entry>;
  chars_: number; // length of all texts in waiting_
  records_: Record<string, number>; // how many events of a record wait
  recorded_(entry: Entry): void;
  take_(records: string[]): void; // takes the events that other pages have left
  strip_(text: string): string | void; // returns the part of an event that may be stored
  visit_(how?: number): object | void; // returns the attribution fields for an event
  edit_(event: any): any; // returns the event to send; false, null or undefined drops it
} = { chars_: 0, records_: {}, waiting_: new Set(), take_: backlog, edit_: (event) => event, recorded_: (entry) => tell(entry.told_), strip_: backlog, visit_() {} };
