// Choice: what the visitor has agreed to, and what the page wants to send. Without consent, calls wait in the queue.

import { attribution, forgetVisit } from './attribution';
import { abort, consented, sender, withdraw } from './delivery';
import { allowed, unhold, waiting } from './queue';
import { json } from './storage';
import { erase, setVisitor } from './visitor';
import { warn } from './warn';
import type { Options } from '../mtag';

const enum Word {
  DEFAULT = 'default',
  DENIED = 'denied',
  GRANTED = 'granted',
  INIT = "write mtag('init', 'https://HOST?tagId=ID', { consent: true or false }), not",
}

// wrong tells the developer how to write init, instead of what was given.
export const wrong = (given: unknown) => warn(Word.INIT, given);

let categories: Record<string, string> = {}; // as the page has stated them
let options: Options | undefined; // of init; undefined before it

// configure takes the options of init.
export function configure(given: Options) {
  options = given;
  // consent: false here does not delete the cookies, because the visitor has not withdrawn consent. Many pages ask for
  // it at each load, and the muid of an earlier visit must still be there when the visitor agrees.
  if (given.consentMode) follow();
  else choose(given.consent, Word.DEFAULT);
}

// choose sets the consent: true or false for all, or an object of categories. A default withdraws nothing.
export function choose(given: any, how?: string) {
  if (Object(given) !== given) {
    if (typeof given != 'boolean') wrong(given);
    given = given === true ? Word.GRANTED : Word.DENIED;
    given = { analytics_storage: given, ad_storage: given };
  }
  Object.keys(given).forEach((name) => {
    // The names begin with an a: analytics_storage, ad_storage, ad_user_data, ad_personalization. Defaults can be for
    // some regions only. The tag does not know the visitor's region: the strictest default counts.
    if (name[0] == 'a' && (how != Word.DEFAULT || categories[name] != Word.DENIED)) categories[name] = given[name];
  });
  if (options && categories.analytics_storage == Word.GRANTED && !(options.gpc && (navigator as any).globalPrivacyControl)) {
    sender(); // a missing cookie is a withdrawal: the visitor becomes a new one before anything is written
    forgetVisit();
    visit(); // the cookie may have click ids that are not allowed any more
    consented();
  } else if (how != Word.DEFAULT && categories.analytics_storage != Word.GRANTED) withdraw();
}

const visit = (anew?: boolean) => attribution(categories.ad_storage == Word.GRANTED, anew);

// forgetVisitor makes the visitor another one, for mtag('reset'). Events that wait keep the muid of now. The cookies are replaced, because other tabs
// take a missing one for a withdrawal. Without consent, what waits has no muid yet: it is dropped, or it would become the
// next visitor's.
export function forgetVisitor() {
  abort();
  if (allowed && sender()) return setVisitor(), visit(true);
  waiting.forEach(unhold);
  erase();
}

// complete adds the fields that need consent, and lets the page edit the event. It returns false, null or undefined
// for an event that is dropped.
export function complete(fields: object) {
  let event: any = Object.assign({}, visit(), { consent: categories }, fields);
  if (options!.beforeSend) {
    event = JSON.parse(json(event)); // the page may edit it, but not its own products
    const edited: any = options!.beforeSend(event);
    if (edited && edited.then) return warn('not sent, beforeSend is async:', event.event);
    if (edited === false || typeof edited == 'object') return edited;
  }
  return event;
}

// follow takes over the calls of gtag('consent', …), those before and those to come. They are in dataLayer, whose push
// belongs to Google's tag.
function follow() {
  const layer: ArrayLike<any>[] = ((window as any).dataLayer = (window as any).dataLayer || []);
  const { push } = layer;
  const see = (entry: ArrayLike<any>) => entry && entry[0] == 'consent' && choose(entry[2], entry[1]);
  layer.push = (...entries) => {
    entries.forEach(see);
    return push.apply(layer, entries);
  };
  layer.forEach(see);
}
