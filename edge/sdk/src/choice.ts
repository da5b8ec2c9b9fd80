// Choice: what the visitor has agreed to. Without consent, calls wait in the queue. The base script knows yes and no; the
// part options replaces choose for categories.

import { withdraw } from './delivery';
import { kit } from './kit';
import { need } from './parts';
import { save, unhold } from './queue';
import { announce } from './storage';
import { cookie, Cookie, sender } from './visitor';
import { safely, warn } from './warn';

// Who has made a choice, unless the page has called consent.
export const enum By {
  DEFAULT = 1, // withdraws nothing
  TAB, // another tab, whose page has called consent
}

export const enum Visit {
  FORGET = 1, // forgets what was read from the cookie
  RESET, // forgets everything
}

kit.init_ = (options: any) => kit.choose_(options.consent, By.DEFAULT);

// choose sets the consent of the visitor.
kit.choose_ = (given: any, by?: By) => {
  if (Object(given) === given) return need('options', () => kit.choose_(given, by));
  const yes = given === true;
  if (given !== !!given) warn('wrong consent:', given);
  const word = yes ? 'granted' : 'denied';
  kit.consent_ = { analytics_storage: word, ad_storage: word };
  kit.decided_(yes, by, yes);
};

// decided begins to store and send, or withdraws consent. What is announced goes to the other tabs: a page that has nothing
// to withdraw must not store anything.
kit.decided_ = (granted: boolean, by: By | undefined, announced: unknown) => {
  if (!by && (granted || kit.allowed_ || cookie(Cookie.MUID))) announce('consent', announced, By.TAB);
  if (!granted) return by == By.DEFAULT || withdraw(by == By.TAB);
  sender(); // a missing cookie is a withdrawal: the visitor becomes a new one before anything is written
  // Events that waited for consent are stored, and waiting calls are made.
  kit.allowed_ = true;
  save();
  [...kit.waiting_].forEach((entry) => {
    if (!entry.call_) return;
    unhold(entry);
    safely(() => entry.call_!(JSON.parse(entry.text_)));
  });
  kit.retryNow_();
};
