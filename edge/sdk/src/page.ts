// The page: the fields that it adds to events, and page views.

import { whenAllowed } from './delivery';
import { kit } from './kit';
import { load } from './parts';
import { soon } from './warn';

const enum After {
  TITLE = 500, // ms after a change of the URL, in which a single-page application sets the new title
}

let viewed = location.href; // the URL of the last page view
let pending: any; // the page view that waits for its title

// page returns the fields of an event that is made now, without the title, which may come later.
kit.page_ = () => ({
  event_time: new Date().toISOString(),
  pageUrl: location.href,
  referrer: kit.referrer_,
});

// withoutCampaign removes what a campaign has added to a URL. The result is only for comparisons.
const withoutCampaign = (url: string) => url.replace(/[?&](utm_[^&#]*)?/g, '');

// settle sends the page view that waits for its title.
export const settle = () => {
  if (pending) kit.viewed_(pending);
  pending = 0;
};

// changed makes a page view when the URL has changed. The title comes later.
kit.changed_ = () => {
  const from = viewed;
  viewed = location.href;
  if (withoutCampaign(from) == withoutCampaign(viewed)) return;
  settle();
  kit.referrer_ = from; // document.referrer changes only with a page load
  pending = kit.page_();
  soon(settle, After.TITLE);
};

// watchViews makes the first page view, and one after each change of the URL. Browsers without the Navigation API or
// Temporal load the part older.
export const watchViews = () => {
  const { navigation, Temporal } = window as any;
  whenAllowed('', () => (navigation && Temporal ? (kit.timezone_ = Temporal.Now.timeZoneId()) : load('older')));
  kit.viewed_();
  if (navigation) navigation.addEventListener('currententrychange', kit.changed_);
};
