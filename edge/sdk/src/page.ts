// The page: the fields that it adds to every event, and page views.

let viewedURL = ''; // of the last page view; empty before the first
let referrer = document.referrer;

export const page = () => ({
  event_time: new Date().toISOString(),
  pageUrl: location.href,
  pageTitle: document.title,
  referrer,
  language: navigator.language,
  screen: screen.width + 'x' + screen.height,
  timezone: Intl.DateTimeFormat().resolvedOptions().timeZone,
});

// watchViews calls viewed now, after each change of the URL, and when the page returns from the back/forward cache.
export function watchViews(viewed: () => void) {
  const check = () => {
    if (viewedURL == location.href) return;
    if (viewedURL) referrer = viewedURL; // document.referrer changes only with a page load
    viewedURL = location.href;
    viewed();
  };
  (['pushState', 'replaceState'] as const).forEach((method) => {
    const original = history[method];
    history[method] = function (...state) {
      original.apply(this, state);
      check();
    };
  });
  addEventListener('popstate', check); // a change of the hash sends popstate too
  addEventListener('pageshow', (event) => event.persisted && viewed());
  check();
}
