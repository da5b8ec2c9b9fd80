// backlog sends what other pages of the host have left in localStorage, and removes what is personal from what is stored. The
// base script loads it by itself for a page that needs one of them.
//
// Email addresses and phone numbers are only in memory: what is stored of such an event is a stripped copy. The tag host
// records a repeated event once, by its event_id, and the first one counts. So other pages leave a stripped copy to the page
// that has the event in full, for as long as that may be open.

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

  // take adds the events of records. What is broken or too old is removed: the tag host might record an older event a second
  // time. It takes young records only when the page may close, because the visitor may not open another one.
  function take(records: string[], leaving?: boolean) {
    young = records.filter((record) => {
      const [, born] = /\.(\d+)mark/.exec(record) || [];
      const age = Math.max(0, Date.now() - +born!);
      const text = localStorage[record];
      if (text == undefined) return;
      if (!leaving && age < Is.MIN_AGE && text.split('\n').some((line: string) => line[0] == Is.STRIPPED)) return true;
      const lines: string[] = [];
      for (const line of text.split('\n')) {
        try {
          const event = JSON.parse(line);
          if (!(age < Is.MAX_AGE)) throw line;
          lines.push(kit.replacer_ ? line.slice(0, +(line[0] == Is.STRIPPED)) + JSON.stringify(event, kit.replacer_) : line);
        } catch {
          console.warn('mtag: not sent, broken or too old:', record);
        }
      }
      kit.records_[record] = lines.length;
      lines.forEach((line) => {
        kit.chars_ += line.length;
        kit.waiting_.add({ path_: 'mark', text_: line, record_: record });
      });
      if (!lines[0]) delete localStorage[record];
      else if (kit.replacer_) localStorage[record] = lines.join('\n'); // it only becomes shorter
    });
    if (young[0]) setTimeout(kit.retryNow_, Is.MIN_AGE);
  }

  // Before the base script sends what waits.
  for (const leaves of ['pagehide', 'visibilitychange']) {
    addEventListener(leaves, () => (document.hidden || leaves == 'pagehide') && kit.allowed_ && take(young, true), true);
  }
  kit.retryNow_();
});
