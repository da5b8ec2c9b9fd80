// The page: the fields that it adds to events, and page views.

import { soon } from './warn';
import { kit } from './kit';

declare global {
  var navigation: EventTarget | undefined, NavigateEvent: any, Temporal: any; // of new browsers; navigation may also be an element with that id
}

const enum After {
  TITLE = 500, // ms after a change of the URL, in which a single-page application sets the new title
}

let pending: any; // the page view that waits for its title

let referrer = document.referrer;
let time: number; // when the last event was made, in ms
let timeText: string; // the same for the service: to make it takes a tenth of a call

// page returns the fields of an event that is made now, without the title, which may come later.
export const page = () => ({
  event_time: time == (time = Date.now()) ? timeText : (timeText = new Date().toISOString()),
  pageUrl: location.href,
  referrer,
});

kit.url_ = location.href; // of the last page view

// changed makes a page view when the URL has changed. The title comes later.
kit.changed_ = () => {
  if (kit.url_ == location.href) return;
  settle();
  referrer = kit.url_; // document.referrer changes only with a page load
  kit.url_ = location.href;
  pending = page();
  soon(settle, After.TITLE);
};

// settle sends the page view that waits for its title.
export const settle = () => (pending = pending && kit.viewed_(pending)); // viewed returns nothing
