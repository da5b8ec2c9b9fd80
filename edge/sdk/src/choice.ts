// Choice: what the visitor has agreed to. Without consent, calls wait in the queue. The base script knows yes and no; the
// part options replaces choose for categories.

import { abort, consented, sender, withdraw } from './delivery';
import { kit } from './kit';
import { allowed, unhold, waiting } from './queue';
import { announce, Key, storage } from './storage';
import { cookie, Cookie, erase, setVisitor } from './visitor';
import { warn } from './warn';

// Who has made a choice, unless the page has called consent.
export const enum By {
  DEFAULT = 1, // withdraws nothing
  TAB, // another tab, whose page has called consent
}

export const enum Visit {
  FORGET = 1, // forgets what was read from the cookie
  RESET, // forgets everything
}

// wrong tells the developer how to write init, instead of what was given.
export const wrong = (given: unknown) => warn("write mtag('init', 'https://HOST?tagId=ID', { consent: true or false }), not", given);

// choose sets the consent of the visitor.
kit.choose = (given: any, by?: By) => {
  const yes = given === true;
  if (!yes && given !== false) wrong(given);
  const word = yes ? 'granted' : 'denied';
  kit.consent = { analytics_storage: word, ad_storage: word };
  kit.decided(yes, by, yes);
};

// decided begins to store and send, or withdraws consent. What is announced goes to the other tabs: a page that has nothing
// to withdraw must not store anything.
kit.decided = (granted: boolean, by: By | undefined, announced: unknown) => {
  if (!by && (granted || allowed || cookie(Cookie.MUID))) announce(announced);
  if (!granted) return by == By.DEFAULT || withdraw(by == By.TAB);
  sender(); // a missing cookie is a withdrawal: the visitor becomes a new one before anything is written
  kit.visit(Visit.FORGET);
  kit.visit(); // the cookie may have click ids that are not allowed any more
  consented();
};

// forgetVisitor makes the visitor another one, for mtag('reset'). Events that wait keep the muid of now. The cookies are
// replaced, because other tabs take a missing one for a withdrawal. Without consent, what waits has no muid yet: it is
// dropped, or it would become the next visitor's.
export function forgetVisitor() {
  abort();
  if (allowed && sender()) {
    setVisitor();
    delete storage[Key.RENEWED]; // the next request has the new cookie renewed
    announce(0);
    return kit.visit(Visit.RESET);
  }
  if (waiting.size) warn('reset: not sent, waited for consent:', waiting.size);
  waiting.forEach(unhold);
  erase();
}
