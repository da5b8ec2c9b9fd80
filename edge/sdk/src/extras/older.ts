// older is for browsers without the Navigation API or Temporal: it watches the URL, and finds the timezone. The base script
// loads it in such browsers.

import { part } from './extra';

const LOADED = 5e3; // ms after the start of the page: by then it has loaded

part('older', (_, kit) => {
  const { NavigateEvent, Temporal } = window as any;
  if (!NavigateEvent) {
    for (const method of ['pushState', 'replaceState'] as const) {
      const original = history[method];
      history[method] = function (...state) {
        original.apply(this, state);
        kit.changed_();
      };
    }
    addEventListener('popstate', kit.changed_); // a change of the hash sends popstate too
    kit.changed_(); // the URL may have changed before this part loaded
  }
  // The first use of Intl blocks a slow phone for up to 50 ms. Events before it have no timezone.
  const find = () => (kit.timezone_ = Intl.DateTimeFormat().resolvedOptions().timeZone);
  if (!Temporal) setTimeout(find, Math.max(0, LOADED - performance.now()));
});
