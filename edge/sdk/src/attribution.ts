// Attribution: the campaign and the click that brought the visitor, and the session. They are kept in a cookie on the
// root domain, because shop and checkout are often two hosts, and localStorage does not cross hosts. Its value is the text
// of a URL query: the fields, and t, the time of the last event in ms.

import { Cookie, cookie, write } from './visitor';

const enum Visit {
  SECONDS = 90 * 24 * 60 * 60, // 90 days after the last event; ad platforms take click ids for that long
  MAX_CHARS = 3e3, // of the cookie; many web servers refuse a request with 8,000 of headers
  IDLE = 18e5, // ms without an event that end a session
  REFRESH = 1e3, // ms between two uses of the cookie
}

type Fields = Record<string, any>;

let landing = location.search; // read early: single-page applications change it
let fields: Fields;
let text = ''; // the value of the cookie; it stands in where cookies are denied
let due = 0; // when the fields are refreshed

// attribution returns fields for an event. It needs consent. Click ids also need ads, the consent to ad_storage. With
// anew, everything that was known is forgotten.
export function attribution(ads: boolean, anew?: boolean) {
  const now = Date.now();
  const parse = (query: string) => {
    const parsed: Fields = {};
    new URLSearchParams(query).forEach((value, name) => {
      if (value && (ads || !/cl|br|fb/.test(name))) parsed[name] = value;
    });
    return parsed;
  };
  if (anew) landing = '';
  if (anew || now > due) {
    const fresh = landing.match(/\b(utm_\w+|\w+clk?id|\wbraid)=[^&]+/g) || []; // each is name=value
    let kept = anew ? '' : cookie(Cookie.VISIT) || text;
    if (!kept) kept = ['first_referrer=' + encodeURIComponent(document.referrer), ...fresh].join('&first_');
    // A new campaign replaces the last one's utm fields. A click id stays until the same platform sends a newer one.
    if (fresh[0]) kept = kept.replace(/(^|&)utm_[^&]+/g, '');
    fields = parse([kept, ...fresh].join('&'));
    if (!(now - fields.t < Visit.IDLE)) fields.session_id = now;
    fields.t = now;
    if (ads) {
      // Meta's pixel has its own _fbc of the same click. The texts begin with the time: the newest counts.
      fields.fbc = [cookie('_fbc'), fields.fbc || '', fields.fbclid ? `fb.1.${now}.${fields.fbclid}` : ''].sort()[2];
      fields.fbp = cookie('_fbp');
      fields.fbclid = '';
    }
    landing = ads ? '' : landing.replace(/utm_/g, '');
    text = '' + new URLSearchParams(fields);
    if (!text[Visit.MAX_CHARS]) write(Cookie.VISIT, text, Visit.SECONDS);
    fields = parse(text);
    delete fields.t;
    due = now + Visit.REFRESH;
  }
  return fields;
}

// forgetVisit forgets what attribution has read from the cookie.
export function forgetVisit() {
  due = 0;
  text = '';
}
