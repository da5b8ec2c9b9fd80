// views makes the page views of single-page applications. The base script loads it by itself when the URL changes for the first
// time, and in browsers without the Navigation API or Temporal.

import { part } from './extra';

const enum After {
  TITLE = 500, // ms after a change of the URL, in which a single-page application sets the new title
  LOAD = 5e3, // ms after the start of the page, when it has loaded
}

// same reports whether two URLs are of one view: what a campaign has added makes none.
const same = (a: string, b: string) => shorten(a) == shorten(b);
const shorten = (url: string) => url.replace(/[?&]utm_\w+=[^&#]*/g, '').replace('?', '&');

part('views', (_, kit) => {
  const { navigation, Temporal } = window as any;
  let viewed = ''; // the URL of the last page view; empty before the first
  let pending: any; // the page view that waits for its title

  const settle = (pageTitle: string) => {
    if (pending) kit.viewed_({ ...pending, pageTitle });
    pending = undefined;
  };
  const finish = () => settle(kit.page_().pageTitle);

  kit.changed_ = () => kit.changes_.splice(0).forEach((page: any) => {
    const from = viewed;
    viewed = page.pageUrl;
    if (!from || same(from, viewed)) return;
    settle(page.pageTitle); // the title is still the last page's
    kit.referrer_ = from; // document.referrer changes only with a page load
    pending = { ...page, referrer: from };
    setTimeout(finish, After.TITLE);
  });

  if (!navigation) {
    const changed = () => {
      kit.changes_.push(kit.page_());
      kit.changed_();
    };
    for (const method of ['pushState', 'replaceState'] as const) {
      const original = history[method];
      history[method] = function (...state) {
        original.apply(this, state);
        changed();
      };
    }
    addEventListener('popstate', changed); // a change of the hash sends popstate too
  }
  // Before the base script sends what waits. A phone may end a hidden page without pagehide.
  addEventListener('pagehide', finish, true);
  addEventListener('visibilitychange', finish, true);
  // The first use of Intl blocks a slow phone for up to 50 ms. Events before it have no timezone.
  if (!Temporal) {
    setTimeout(() => (kit.timezone_ = Intl.DateTimeFormat().resolvedOptions().timeZone), Math.max(0, After.LOAD - performance.now()));
  }
  kit.changed_();
});
