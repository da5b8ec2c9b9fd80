// options has what few pages need of consent and of init: categories, Google's Consent Mode, Global Privacy Control,
// beforeSend and debug. The base script loads it by itself for a page that uses one of them.

import type { Options } from '../../npm/mtag';
import { part, whenPushed } from './extra';

const enum By {
  DEFAULT = 1,
  TAB,
}

const enum Word {
  DEFAULT = 'default',
  GRANTED = 'granted',
  DENIED = 'denied',
}

type Categories = Record<string, string>;

// What needs ad_storage: fields and parameters that identify a click on an ad, also inside another URL.
const CLICK = '(\\w*cl(ic)?k?id|[gw]braid|gad_\\w+|gclsrc|_gl|li_fat_id|epik|rdt_cid|sccid)';
const CLICKS: [RegExp, RegExp] = [
  RegExp(`^((first_)?${CLICK}|fb[cp])$`, 'i'),
  RegExp(`[?&#]${CLICK}=[^&#]*|%(3F|26)${CLICK}%3D((?!%26)[^&#])*`, 'gi'),
];

part('options', (_, kit) => {
  let categories: Categories = {}; // as the page has stated them
  let options: Options = {};

  // choose sets the consent: true or false for all, or an object of categories. A default changes no category that was stated
  // before, and withdraws nothing. Neither does a call that does not name analytics_storage.
  kit.choose = (given: any, by?: By) => {
    if (Object(given) !== given) {
      if (typeof given != 'boolean') kit.wrong(given);
      const word = given === true ? Word.GRANTED : Word.DENIED;
      given = { analytics_storage: word, ad_storage: word };
    }
    // The names begin with an a: analytics_storage, ad_storage, ad_user_data, ad_personalization.
    categories = Object.assign({}, categories);
    for (const name in given) if (name[0] == 'a' && !(by == By.DEFAULT && categories[name])) categories[name] = given[name];
    kit.consent = categories;
    kit.hidden = categories.ad_storage == Word.GRANTED ? undefined : CLICKS;
    const granted = categories.analytics_storage == Word.GRANTED && !(options.gpc && (navigator as any).globalPrivacyControl);
    if (granted && kit.hidden) kit.abort(); // a request may have what is hidden now
    if (granted || given.analytics_storage) kit.decided(granted, by, granted && categories);
  };

  // beforeSend may edit the event, but not the page's own products.
  kit.edit = (event: any) => {
    if (!options.beforeSend) return event;
    event = JSON.parse(kit.json(event, kit.hidden));
    const edited: any = options.beforeSend(event);
    if (edited && edited.then) return kit.warn('not sent, beforeSend is async:', event.event);
    return edited === false || typeof edited == 'object' ? edited : event;
  };

  kit.init = (given: Options) => {
    options = given;
    if (given.debug) kit.trace = (...words: unknown[]) => console.log('mtag:', ...words);
    if (given.consentMode) follow();
    else kit.choose(given.consent, By.DEFAULT);
  };

  // follow takes over the calls of gtag('consent', …), those before and those to come. A default with wait_for_update
  // grants nothing before that time.
  function follow() {
    const page = window as any;
    const defaults: Categories = {};
    const narrow: Record<string, number> = {}; // how narrow the region is that a default is for
    let wait = 0; // ms
    let late: any; // the timer
    const apply = () => kit.choose(defaults, By.DEFAULT);
    const see = (entry: any) => {
      if (!entry || entry[0] != 'consent' || !entry[2]) return;
      const [, how, given] = entry;
      if (how != Word.DEFAULT) {
        categories = Object.assign({}, defaults, categories); // what has been waited for has come
        return kit.choose(given);
      }
      const width = fits(given.region);
      if (width < 0) return;
      for (const name in given) {
        // Without the visitor's region the strictest default counts.
        const better = options.region ? width >= (narrow[name] || 0) : defaults[name] != Word.DENIED;
        if (name[0] != 'a' || !better) continue;
        defaults[name] = given[name];
        narrow[name] = width;
      }
      wait = Math.max(wait, +given.wait_for_update || 0);
      clearTimeout(late);
      if (wait) late = setTimeout(apply, wait);
      else Promise.resolve().then(apply).catch(kit.warn);
    };
    whenPushed((page.dataLayer = page.dataLayer || []), see);
  }

  // fits returns how narrow a list of regions is for the visitor: 1 for all regions, more for a country and its part, -1
  // when the visitor is elsewhere.
  function fits(regions?: string[]) {
    if (!regions || !options.region) return 1;
    return Math.max(-1, ...regions.map((region) =>
      (options.region + '-').toUpperCase().startsWith(region.toUpperCase() + '-') ? region.length : -1));
  }
});
