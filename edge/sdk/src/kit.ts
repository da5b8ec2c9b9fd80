// The kit is what parts of the tag use and replace. A part is a script of its own, so the names here are not shortened.

import type { Hidden } from './storage';

export const kit: Record<string, any> & {
  consent?: Record<string, string>; // the categories as the page has stated them; undefined before that
  hidden?: Hidden; // what no event may have
  trace(...words: unknown[]): void; // writes what the tag does to the console
  visit(how?: number): object | void; // returns fields for an event: of attribution
  edit(event: any): any; // returns the event as it is sent; false, null or undefined for none
} = { trace() {}, visit() {}, edit: (event) => event };
