// Choice: what the visitor has agreed to. Without consent, calls wait in the queue. The base script knows yes and no; the
// part options replaces choose for categories.

import { withdraw } from './delivery';
import { safely, soon, tell, warn } from './warn';
import { unhold } from './queue';
import { kit } from './kit';
import { announce, read, sender } from './visitor';
import { load, need } from './parts';

// Who has made a choice, unless the page has called consent.
export const enum By {
  DEFAULT = 1, // withdraws nothing
  TAB, // another tab, whose page has called consent
}

export const enum Word {
  GRANTED = 'granted',
  DENIED = 'denied',
}

export const enum Visit {
  FORGET = 1, // forgets what was read from the cookie
  RESET, // forgets everything
}

kit.init_ = (options: any) => kit.choose_(options.consent, By.DEFAULT);

// categories returns a choice by category.
export const categories = (given: any, word = given === true ? Word.GRANTED : Word.DENIED) => {
  if (Object(given) === given) return given;
  if (given !== !!given) warn('wrong:', given);
  return { analytics_storage: word, ad_storage: word };
};

// choose sets what the visitor has agreed to: true or false for all, or an object of categories. A default changes no category
// that was stated before. A call withdraws consent when it names analytics_storage. To leave out click ids without ad_storage
// needs a part: until it is there nothing is stored or sent, and without it there is no consent.
kit.choose_ = (given: any, by?: By, visitor?: string) => {
  given = categories(given);
  const all = (kit.consent_ = { ...kit.consent_, ...given, ...(by == By.DEFAULT && kit.consent_) });
  const granted = all.analytics_storage == Word.GRANTED;
  if (granted && all.ad_storage != Word.GRANTED && !kit.options) {
    kit.allowed_ = 0;
    kit.abort_();
    return need('options', () => kit.choose_(given, by, visitor), () => by == By.DEFAULT || kit.choose_(false, by));
  }
  if (granted || given.analytics_storage) kit.decided_(granted && all, by, visitor);
};

// decided begins to store and send, or withdraws consent. A call of the page goes to the other tabs: a page that has nothing
// to withdraw must not store anything. A new visitor's cookie must be there before another tab writes its own, and a call that
// waited may have withdrawn consent: the page's beforeSend sees it.
kit.decided_ = (granted: unknown, by?: By, visitor?: string) => {
  if (!granted) {
    if (!by && (kit.allowed_ || read())) announce('consent', granted);
    return by == By.DEFAULT ? soon(kit.retryNow_) : withdraw(by);
  }
  sender(); // a missing cookie is a withdrawal: the visitor becomes a new one before anything is written
  // Calls that waited for consent are made. Events are sent, and then stored.
  kit.allowed_ = 1;
  sender(visitor); // of the other tab
  // Browsers without the Navigation API or Temporal need the part older. To load it fails with Trusted Types. A page may have an
  // element with the id navigation, or an old polyfill of Temporal.
  if (self.NavigateEvent && self.Temporal) safely(() => (kit.timezone_ = Temporal.Now.timeZoneId()));
  else tell(load, 'older');
  [...kit.waiting_].map((entry) => entry.path_ || safely(() => {
    unhold(entry);
    entry.told_!(JSON.parse(entry.text_));
  }));
  if (!by && sender()) announce('consent', granted);
  soon(kit.retryNow_);
};
