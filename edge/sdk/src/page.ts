// The page: the fields that it adds to events, and page views.

import { soon } from './warn';

const enum After {
  TITLE = 500, // ms after a change of the URL, in which a single-page application sets the new title
  LOAD = 5e3, // ms after the start of the page, when it has loaded
}

let viewedURL = ''; // of the last page view; empty before the first
let referrer = document.referrer;

// title returns the title of the page. Some pages make it throw.
function title() {
  try {
    return document.title;
  } catch {}
}

// page returns the fields of an event that is made now.
export const page = () => ({
  event_time: new Date().toISOString(),
  pageUrl: location.href,
  pageTitle: title(),
  referrer,
});

// device returns the fields that are the same for all events of a request. It is called only with consent.
export function device() {
  // The first use of Intl blocks a slow phone for up to 50 ms. Browsers without Temporal use it when the page has loaded;
  // events before that have no timezone.
  const { Temporal } = window as any;
  return {
    language: navigator.language,
    screen: screen.width + 'x' + screen.height,
    timezone: Temporal ? Temporal.Now.timeZoneId() :
      performance.now() > After.LOAD ? Intl.DateTimeFormat().resolvedOptions().timeZone : undefined,
  };
}

// withoutCampaign removes what a campaign has added to a URL. The result is only for comparisons.
const withoutCampaign = (url: string) =>
  url.replace(/[?&]utm_\w+=[^&#]*/g, '').replace('?', '&');

// watchViews calls viewed now, after each change of the URL, and when the page returns from the back/forward cache. After
// a change it waits for the new title, and passes the fields of the view.
export function watchViews(viewed: (fields: object) => void) {
  let pending: object | undefined;
  const finish = () => {
    if (pending) viewed(Object.assign(pending, { pageTitle: title() }));
    pending = undefined;
  };
  const check = () => {
    const from = viewedURL;
    viewedURL = location.href;
    if (withoutCampaign(from) == withoutCampaign(viewedURL)) return;
    finish();
    if (from) referrer = from; // document.referrer changes only with a page load
    pending = page();
    if (from) soon(finish, After.TITLE);
    else finish();
  };
  (['pushState', 'replaceState'] as const).forEach((method) => {
    const original = history[method];
    history[method] = function (...state) {
      original.apply(this, state);
      check();
    };
  });
  addEventListener('popstate', check); // a change of the hash sends popstate too
  const { navigation } = window as any;
  if (navigation) navigation.addEventListener('currententrychange', check);
  // Before delivery sends what waits. A phone may end a hidden page without pagehide.
  addEventListener('pagehide', finish, true);
  addEventListener('visibilitychange', finish, true);
  addEventListener('pageshow', (event) => event.persisted && viewed(page()));
  check();
}
