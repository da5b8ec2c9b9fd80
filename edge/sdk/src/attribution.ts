// Attribution: the campaign and the click that brought the visitor, and the session. They are kept in a cookie on the
// root domain, because shop and checkout are often two hosts, and localStorage does not cross hosts.

import { cookie as read, write } from './visitor';

const enum Visit {
  COOKIE = '_mtag.visit', // its value is the text of a URL query: the fields, and t, the time of the last event in ms
  SECONDS = 90 * 24 * 60 * 60, // 90 days after the last event; ad platforms take click ids for that long
  MAX_CHARS = 3e3, // of the cookie; many web servers refuse a request with 8,000 of headers
  IDLE = 18e5, // ms without an event that end a session
  REFRESH = 1e3, // ms between two uses of the cookie
}

type Fields = Record<string, any>;

let landing = location.search; // read early: single-page applications change it
let usedAds: boolean; // when the fields were refreshed
let fields: Fields;
let text = ''; // the value of the cookie; it stands in where cookies are denied
let due = 0; // when the fields are refreshed

// attribution returns fields for an event. It needs consent. Click ids also need ads, the consent to ad_storage.
export function attribution(ads: boolean) {
  const now = Date.now();
  const take = (query: string, names: RegExp) => {
    const taken: Fields = {};
    new URLSearchParams(query).forEach((value, name) => {
      if (value && names.test(name) && (ads || !/cl|br|fb/.test(name))) taken[name] = value;
    });
    return taken;
  };
  if (now > due || ads != usedAds) {
    const fresh = take(landing, /^utm_|clk?id$|braid$/);
    const names = Object.keys(fresh);
    const kept = read(Visit.COOKIE) || text;
    // A new campaign replaces the last one's utm fields. A click id stays until the same platform sends a newer one.
    fields = take(kept, names[0] ? /^[^u]/ : /^/);
    if (!kept) {
      fields.first_referrer = document.referrer;
      names.forEach((name) => (fields['first_' + name] = fresh[name]));
    }
    Object.assign(fields, fresh, now - fields.t < Visit.IDLE || { session_id: now }, { t: now });
    if (ads) {
      // Meta's pixel has its own _fbc of the same click. The texts begin with the time: the newest counts.
      fields.fbc = [read('_fbc'), fields.fbc || '', fresh.fbclid ? `fb.1.${now}.${fresh.fbclid}` : ''].sort()[2];
      fields.fbp = read('_fbp');
      fields.fbclid = landing = '';
    }
    text = new URLSearchParams(fields) + '';
    if (!text[Visit.MAX_CHARS]) write(Visit.COOKIE, text, Visit.SECONDS);
    fields = take(text, /../); // without t
    usedAds = ads;
    due = now + Visit.REFRESH;
  }
  return fields;
}

// eraseAttribution deletes the cookie. With reset, the page's own campaign is forgotten too.
export function eraseAttribution(reset?: boolean) {
  if (reset) landing = '';
  due = 0;
  text = '';
  if (read(Visit.COOKIE)) write(Visit.COOKIE, text, 0);
}
