// options has what few pages need of consent and of init: categories, Google's Consent Mode, Global Privacy Control,
// beforeSend and debug. The base script loads it by itself for a page that uses one of them.

import type { Options } from '../../npm/mtag';
import './backlog';
import { part, whenPushed } from './extra';
import { hider, type Hidden } from './hide';

const enum By {
  DEFAULT = 1,
}

const enum Visit {
  FORGET = 1,
}

const enum Word {
  DEFAULT = 'default',
  GRANTED = 'granted',
  DENIED = 'denied',
}

type Categories = Record<string, string>;

// What needs ad_storage: fields and parameters that identify a click on an ad, or who has opened a newsletter, also inside another
// URL.
const CLICK = '(\\w*cl(ic)?k?_?id|[gw]braid|gad_\\w+|gclsrc|_gl|srsltid|li_fat_id|epik|rdt_cid|sccid|tblci|dicbo|cjevent|awc|tduid|' +
  's_kwcid|ef_id|mc_eid|_kx|__?hs\\w+|__s|(oly|vero)_\\w+|mkt_tok|wickedid|_openstat)';
const CLICKS: Hidden = [
  RegExp(`^((first_)?${CLICK}|fb[cp])$`, 'i'),
  RegExp(`[?&#]${CLICK}=[^&#]*|%(25)*(3F|26)${CLICK}%(25)*3D((?!%(25)*26)[^&#])*`, 'gi'), // encoded once or more
];

part('options', (_, kit) => {
  let options: Options = {};
  const { choose_, decided_ } = kit;

  kit.choose_ = (given: any, ...more: unknown[]) =>
    choose_(options.gpc && (navigator as any).globalPrivacyControl ? false : given, ...more);

  kit.decided_ = (granted: boolean, ...more: unknown[]) => {
    hide(kit.consent_!.ad_storage == Word.GRANTED ? undefined : CLICKS);
    if (granted) {
      kit.visit_(Visit.FORGET);
      if (kit.hidden_) kit.abort_(); // a request under way may have click ids that are not allowed any more
    }
    decided_(granted, ...more);
    // So may the cookie. It is written anew before the next request, unless beforeSend has withdrawn consent.
    if (granted && kit.allowed_) kit.visit_();
  };

  // hide sets what to leave out of every event, waiting ones included.
  function hide(hidden?: Hidden) {
    kit.hidden_ = hidden;
    kit.replacer_ = hidden || ([] as any).toJSON ? hider(hidden) : undefined;
    if (!hidden) return;
    kit.unstore_();
    kit.waiting_.forEach((entry) => {
      const stripped = entry.text_[0] == ' ' ? ' ' : '';
      kit.chars_ -= entry.text_.length;
      entry.text_ = stripped + JSON.stringify(JSON.parse(entry.text_), kit.replacer_);
      kit.chars_ += entry.text_.length;
    });
  }

  // beforeSend may edit the event, but not the page's own products.
  kit.edit_ = (event: any) => {
    if (options.beforeSend) {
      event = JSON.parse(JSON.stringify(event, kit.replacer_));
      const edited: any = options.beforeSend(event);
      if (edited && edited.then) return console.warn('mtag: not sent, beforeSend is async:', event.event);
      if (edited === false || typeof edited == 'object') event = edited;
    }
    if (event && kit.trace_) kit.trace_('queued', event);
    return event;
  };

  kit.init_ = (given: Options) => {
    options = given;
    hide();
    if (given.debug) {
      const { recorded_ } = kit;
      kit.trace_ = (...words: unknown[]) => console.log('mtag:', ...words);
      kit.recorded_ = (entry) => {
        kit.trace_('recorded', entry.text_);
        recorded_(entry);
      };
    }
    if (given.pageviews === false) kit.viewed_ = () => {};
    if (given.consentMode) follow();
    else kit.choose_(given.consent, By.DEFAULT);
  };

  // follow takes over the calls of gtag('consent', …), those before and those to come. A default with wait_for_update
  // grants nothing before that time.
  function follow() {
    const page = window as any;
    const defaults: Categories = {};
    const narrow: Record<string, number> = {}; // how narrow the region is that a default is for
    let wait = 0; // ms
    let late: any; // the timer
    const apply = () => kit.choose_(defaults, By.DEFAULT);
    const see = (entry: any) => {
      if (!entry || entry[0] != 'consent' || !entry[2]) return;
      const [, how, { region, wait_for_update, ...given }] = entry;
      // The names begin with an a: analytics_storage, ad_storage, ad_user_data, ad_personalization.
      for (const name in given) if (name[0] != 'a') delete given[name];
      if (how != Word.DEFAULT) {
        kit.consent_ = { ...defaults, ...kit.consent_ }; // what has been waited for has come
        return kit.choose_(given);
      }
      const width = fits(region);
      if (width < 0) return;
      for (const name in given) {
        // Without the visitor's region the strictest default counts.
        const better = options.region ? width >= (narrow[name] || 0) : defaults[name] != Word.DENIED;
        if (!better) continue;
        defaults[name] = given[name];
        narrow[name] = width;
      }
      wait = Math.max(wait, +wait_for_update || 0);
      clearTimeout(late);
      if (wait) late = setTimeout(apply, wait);
      else Promise.resolve().then(apply).catch(console.warn);
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
