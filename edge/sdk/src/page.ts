// The page: the fields that it adds to events, and page views.

import { whenAllowed } from './delivery';
import { kit } from './kit';
import { load } from './parts';

// page returns the fields of an event that is made now.
kit.page_ = () => {
  let pageTitle;
  try {
    pageTitle = document.title;
  } catch {} // some pages make it throw
  return { event_time: new Date().toISOString(), pageUrl: location.href, pageTitle, referrer: kit.referrer_ };
};

// device returns the other fields that events have with consent.
export const device = () => ({
  language: navigator.language,
  screen: screen.width + 'x' + screen.height,
  timezone: kit.timezone_,
});

// changed has the part views loaded, which replaces it.
kit.changed_ = () => whenAllowed('', () => load('views'));

// watchViews makes the first page view, and notes the page after each change of the URL. Browsers without the Navigation API or
// Temporal need the part at once.
export function watchViews() {
  const { navigation, Temporal } = window as any;
  if (navigation && Temporal) whenAllowed('', () => (kit.timezone_ = Temporal.Now.timeZoneId()));
  else kit.changed_();
  kit.changes_.push(kit.page_());
  kit.viewed_();
  if (navigation) navigation.addEventListener('currententrychange', () => {
    if (!kit.changes_[99]) kit.changes_.push(kit.page_());
    kit.changed_();
  });
}
