// attribution adds the campaign and the click that brought the visitor, and the session. They are kept in a cookie on the
// root domain, because shop and checkout are often two hosts, and localStorage does not cross hosts. Its value is the text
// of a URL query: the fields, and t, the time of the last event in ms.

import { part } from './extra';

const enum Visit {
  FORGET = 1, // forgets what was read from the cookie
  RESET, // forgets everything
}

const enum Max {
  SECONDS = 90 * 24 * 60 * 60, // 90 days after the last event; ad platforms take click ids for that long
  CHARS = 3e3, // of the cookie; many web servers refuse a request with 8,000 of headers
  VALUE = 500, // characters of a value: a longer click id is none
  IDLE = 18e5, // ms without an event that end a session
  REFRESH = 1e3, // ms between two uses of the cookie
}

const COOKIE = '_mtag.visit';
const TOUCH = /^(utm_\w+|\w*cl(ic)?k?id|[gw]braid|gad_source|ScCid|li_fat_id|epik|rdt_cid)$/;

// PERSONAL is what is not stored: the links of newsletters may have it.
const PERSONAL = /^utm_(e?mail|phone)|@|%40/;

type Fields = Record<string, any>;

// withoutCampaign removes what a campaign has added to a URL. The result is only for comparisons.
const withoutCampaign = (url: string) => url.replace(/[?&](utm_[^&#]*)?/g, '');

part('attribution', (_, kit) => {
  const { changed_ } = kit;
  // A page that takes the campaign out of its address shows the same as before.
  kit.changed_ = () => {
    if (withoutCampaign(kit.url_) == withoutCampaign(location.href)) kit.url_ = location.href;
    else changed_();
  };

  let landing = location.search; // read early: single-page applications change it
  let fields: Fields;
  let text = ''; // the value of the cookie; it stands in where cookies are denied
  let due = 0; // when the fields are refreshed

  // parse returns the fields of a query. A parameter that is repeated counts once, the first.
  const parse = (query: string) => {
    const parsed: Fields = {};
    new URLSearchParams(query).forEach((value, name) => {
      if (value && !parsed[name]) parsed[name] = value;
    });
    return parsed;
  };

  // first returns the fields of a visitor's first touch.
  const first = (touched: Fields) => {
    const all: Fields = {};
    const { referrer } = document;
    try {
      // The site itself has sent nobody.
      if (!('.' + new URL(referrer).hostname).endsWith('.' + kit.root_()) && !PERSONAL.test(referrer)) all.first_referrer = referrer.slice(0, Max.VALUE);
    } catch {} // no referrer
    for (const name in touched) all['first_' + name] = touched[name];
    return all;
  };

  kit.visit_ = (how?: number) => {
    if (how == Visit.FORGET) {
      due = 0;
      text = '';
      return;
    }
    const now = Date.now();
    if (how == Visit.RESET) landing = '';
    if (!how && now < due) return fields;
    const known = how ? '' : kit.cookie_(COOKIE) || text;
    const touched = parse(landing);
    const names = Object.keys(touched).filter((name) => TOUCH.test(name) || delete touched[name] && 0);
    names.forEach((name) => (touched[name].length > Max.VALUE || PERSONAL.test(name + touched[name])) && delete touched[name]);
    fields = known ? parse(known) : first(touched);
    // A new campaign replaces the last one's utm fields. A click id stays until the same platform sends a newer one.
    if (names[0]) for (const name in fields) if (name.startsWith('utm_') || names.includes(name)) delete fields[name];
    Object.assign(fields, touched);
    if (!(now - fields.t < Max.IDLE)) fields.session_id = now;
    fields.t = now;
    if (!kit.hidden_) {
      // Meta's pixel has its own _fbc of the same click. The texts begin with the time: the newest counts.
      fields.fbc = [kit.cookie_('_fbc'), fields.fbc || '', fields.fbclid ? `fb.1.${now}.${fields.fbclid}` : ''].sort()[2] || undefined;
      fields.fbp = kit.cookie_('_fbp') || undefined;
      fields.fbclid = undefined;
    }
    fields = JSON.parse(JSON.stringify(fields, kit.replacer_)); // a copy with plain values, without fields that need ad_storage
    landing = kit.hidden_ ? landing.replace(/utm_/g, '') : '';
    const render = () => (text = '' + new URLSearchParams(fields));
    if (render().length > Max.CHARS) {
      for (const name in fields) if (name.startsWith('first_')) delete fields[name];
    }
    if (render().length <= Max.CHARS) kit.write_(COOKIE, text, Max.SECONDS);
    fields = parse(text);
    delete fields.t;
    due = now + Max.REFRESH;
    return fields;
  };
});
