// The queue: the events that have no answer from the tag host yet. With consent each event is also in localStorage, so
// that the next page of the site can send it. A write there takes longer than all else that a call does, so events that
// are made together are written together a moment later, as the lines of a record. A record is deleted when all
// its events have their answer. Until then the next page may send all of them again, and the tag host records each once.
//
// Without consent, the queue also has the calls that wait for consent. The part backlog sends the events that other pages
// left, and keeps personal data out of localStorage.

import { prefix } from './parts';
import { json, storage, store } from './storage';
import { soon, tell, warn } from './warn';
import { kit } from './kit';
import { drain } from './delivery';
import { cookie, Cookie, unique } from './visitor';

const enum Max {
  CHARS = 2e6, // of all texts in the queue; localStorage holds 5 million for each origin
  EVENT = 65e3, // longest text; the tag host accepts 64 KiB
}

export interface Entry {
  path_: string; // mark, id, or empty for a call
  text_: string; // JSON
  record_: string; // the record that it belongs to: a key of localStorage; empty before save
  told_?: (value?: any) => void; // the page's callback when the event is recorded; of a call, what to do with the value when there is consent
  request_?: XMLHttpRequest | 0; // under way, with the event
}

export let making: unknown; // drain will run when the running calls are done

// put adds an event, or a call that waits for consent. It copies the fields, so later changes of them do not matter. It
// throws when JSON.stringify throws or returns undefined.
export const put = (path: string, fields: any, then?: (value?: any) => void) => {
  const text = json(fields);
  if (text.length > Max.EVENT || kit.chars_ + text.length > Max.CHARS) return warn('not sent:', fields.event);
  kit.chars_ += text.length;
  kit.waiting_.add({ path_: path, text_: text, record_: '', told_: then });
  making = making || tell(() => {
    drain();
    making = soon(save);
  });
};

// save stores the events that are in no record yet. It runs soon after they are made, when the first request is under way, and
// before the page can be left: at the latest with pagehide. An identify is not stored, because it is nothing without its email
// address or phone number. The test for personal data is quick, because most events have none.
export const save = () => {
  const lines: string[] = [];
  let name = '';
  [...kit.waiting_].map((entry) => {
    const text = kit.allowed_ && entry.path_ == 'mark' && !entry.record_ &&
      (/@|%40|mail|phone|mobile|"tel/i.test(entry.text_) ? kit.strip_(entry.text_) : entry.text_);
    if (!text) return;
    entry.record_ = name = name || prefix + Date.now() + 'mark' + unique() + ',' + cookie(Cookie.MUID);
    lines.push(text);
  });
  if ((kit.records_[name] = lines.length)) store(name, lines.join('\n'));
};

// unhold removes an event from memory only.
export const unhold = (entry: Entry) => kit.waiting_.delete(entry) && (kit.chars_ -= entry.text_.length);

// unstore removes the records of this page. What waits is stored anew by save.
kit.unstore_ = () => [...kit.waiting_].map((entry) => delete storage()[entry.record_] && (entry.record_ = ''));
