// The kit is what parts of the tag use and replace. A part is a script of its own, and may be of another version. So the
// short names of kit and Entry are the same in all scripts: names.json has them, and must only grow.

import { load } from './parts';
import type { Entry } from './queue';
import { tell } from './warn';

const backlog = () => load('backlog');

export const kit: Record<string, any> & {
  allowed_?: boolean; // the visitor consents
  left_?: boolean; // after pagehide
  consent_?: Record<string, string>; // the categories as the page has stated them; undefined before that
  replacer_?: (this: any, name: string, value: any) => any; // of JSON.stringify, for all that is stored and sent
  waiting_: Set<Entry>;
  chars_: number; // of all texts in waiting
  records_: Record<string, number>; // how many events of a record wait
  recorded_(entry: Entry): void;
  viewed_(view?: object): void; // sends a page view
  take_(records: string[]): void; // takes the events that other pages have left
  strip_(text: string): string | void; // returns what may be stored of an event
  visit_(how?: number): object | void; // returns fields for an event: of attribution
  edit_(event: any): any; // returns the event as it is sent; false, null or undefined for none
} = { referrer_: document.referrer, waiting_: new Set(), chars_: 0, records_: {}, viewed_() {}, take_: backlog, strip_: backlog, recorded_: ({ told_ }) => tell(told_), visit_() {}, edit_: (event) => event };
