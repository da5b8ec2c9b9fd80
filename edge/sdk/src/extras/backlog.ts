// backlog sends the events that other pages of the host left in localStorage, and keeps personal data out of localStorage.
// The base script loads it for a page that needs one of the two.
//
// The key of a record ends with the muid of the cookie when it was made. When the cookie has another one now, or is gone, consent
// was withdrawn on another host of the site, which cannot reach this localStorage: the record is removed. A reset on this host also
// replaces the cookie: its call has the muids of before and after, so the record is sent. Keys of version 1.0.0 have no muid, and no comma.
//
// Email addresses and phone numbers stay in memory: only a stripped copy of such an event is stored. The tag host records an
// event_id once, and the first copy counts. So while the event's own page may be open, other pages do not send the stripped
// copy.

import { part } from './extra';
import { hider, type Hidden } from './hide';

const enum Is {
  STRIPPED = ' ', // before the JSON of a stripped copy
  MIN_AGE = 6e4, // ms, a minute, of a stripped copy: its page has closed, or fails to send it
  MAX_AGE = 6 * 864e5, // ms, 6 days; the tag host remembers an event_id for 7 days
}

// PERSONAL is what is not stored: fields that are named as such, and whatever looks like an address.
const PERSONAL: Hidden = [/mail|phone|mobile|^tel/i, /[^\s"'<>(),:;=?&/#]{1,64}(@|%40)[\w-]+(\.[\w-]+)+/g];

part('backlog', (_, kit) => {
  const strip = hider(PERSONAL);
  let young: string[] = []; // records that other pages may still send

  kit.strip_ = (text) => {
    const rest = JSON.stringify(JSON.parse(text), strip);
    return rest == text ? text : Is.STRIPPED + rest;
  };

  kit.take_ = (records) => take(records.sort());

  // take queues the events of records, with consent. It removes broken ones, those of another visitor, and too old ones: the tag host
  // might record an old event twice. It takes young records only when this page may close, because it may be the visitor's last page.
  function take(records: string[], leaving?: boolean) {
    const visitor = kit.cookie_('_muid');
    const reset = localStorage['_mtag..reset'] || '';
    young = records.filter((record) => {
      const [, muid = visitor] = record.split(','); // version 1.0.0 wrote none
      const isSent = muid == visitor || reset.includes(`"${muid}",2,"${visitor}"`);
      const age = isSent ? Date.now() - +record.split(/\.(\d+)mark/)[1]! : Is.MAX_AGE;
      const text = localStorage[record];
      if (text == undefined || (!kit.allowed_ && age < Is.MAX_AGE)) return;
      if (!leaving && age < Is.MIN_AGE && text.split('\n').some((line: string) => line[0] == Is.STRIPPED)) return true;
      const lines: string[] = [];
      for (const line of text.split('\n')) {
        try {
          const event = JSON.parse(line);
          if (!(age < Is.MAX_AGE)) throw line;
          lines.push(kit.replacer_ ? line.slice(0, +(line[0] == Is.STRIPPED)) + JSON.stringify(event, kit.replacer_) : line);
        } catch {
          console.warn('mtag: not sent, broken or too old, or withdrawn:', record);
        }
      }
      kit.records_[record] = lines.length;
      lines.forEach((line) => {
        kit.chars_ += line.length;
        kit.waiting_.add({ path_: 'mark', text_: line, record_: record });
      });
      if (!lines[0]) delete localStorage[record];
      else if (kit.replacer_) localStorage[record] = lines.join('\n'); // cannot exceed the quota: it only becomes shorter
    });
    if (young[0]) setTimeout(kit.retryNow_, Is.MIN_AGE);
  }

  // In the capture phase, before the base script sends the queue.
  for (const leaves of ['pagehide', 'visibilitychange']) {
    addEventListener(leaves, () => (document.hidden || leaves == 'pagehide') && take(young, true), true);
  }
  kit.retryNow_();
});
