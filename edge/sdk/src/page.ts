// The page: what every event says about it, and when it is viewed.

let here = '';
let from = document.referrer;

export const page = () => ({
  event_time: new Date().toISOString(),
  pageUrl: location.href,
  pageTitle: document.title,
  referrer: from,
  language: navigator.language,
  screen: screen.width + 'x' + screen.height,
  timezone: Intl.DateTimeFormat().resolvedOptions().timeZone,
});

// watch calls viewed now, whenever the address has changed, and on return from the back/forward cache.
export function watch(viewed: () => void) {
  const look = () => {
    if (here == location.href) return;
    if (here) from = here; // within a page without loads, the view before this one is where it comes from
    here = location.href;
    viewed();
  };
  (['pushState', 'replaceState'] as const).forEach((method) => {
    const original = history[method];
    history[method] = function (...state) {
      original.apply(this, state);
      look();
    };
  });
  addEventListener('popstate', look); // a change of the hash is one, too
  addEventListener('pageshow', (event) => event.persisted && viewed());
  look();
}
