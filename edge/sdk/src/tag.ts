// The browser tag: runs the calls of mtag(). The init snippet queues calls in self.mtrem. When this script loads, it
// runs the queued calls, and from then on each call as it is made.

import { kit } from './kit';
import { categories, Visit, Word } from './choice';
import { safely, soon, tell, warn } from './warn';
import type { Identifiers } from '../npm/mtag';
import { Key, said, storage } from './storage';
import { announce, erase, muid, read, sender, setVisitor, unique } from './visitor';
import { hold, init, need, release } from './parts';
import { unhold } from './queue';
import { page } from './page';
import { add, flush, whenAllowed } from './delivery';

interface Calls extends Array<ArrayLike<unknown>> {
  running?: number;
}

const calls: Calls = (self.mtrem = self.mtrem || []);

let common = {}; // fields of every event, from mtag('set')

const commands: Record<string, (...args: any[]) => void> = {
  init,

  // mtag('event', 'Purchase', {...}) or mtag('event', { type: 'Purchase', ... })
  event(name: any, fields?: any, recorded?: () => void) {
    if (Object(name) === name) {
      recorded = fields;
      fields = name;
      name = name.type;
    }
    // A name of GA4 needs a part.
    if (name > '[' && !kit.names) need('names', () => commands.event(name, fields, recorded), () => warn('not sent:', name));
    // The title may be a form of that name. The tag host records each event_id once: an event without one would be recorded again by
    // each retry.
    else whenAllowed({
      ...page(), pageTitle: document.title + '', ...common, ...fields, event: name, event_id: ((fields || 0).event_id || unique()) + '',
    }, (event: any) => {
      event = kit.edit_({ ...kit.visit_(), consent: kit.consent_, ...event });
      if (event) add('mark', event, recorded);
    });
  },

  // Links the visitor to an email, phone or deviceId: backend events with the same ones then get the visitor's muid.
  identify(identifiers: Identifiers) {
    whenAllowed(identifiers, (identifiers) => add('id', identifiers));
  },

  consent: (...call) => kit.choose_(...call),

  // Starts a new visitor. Waiting events keep the present muid. The cookies are replaced, not deleted: other tabs take a
  // missing cookie for a withdrawal. Without consent, waiting events have no muid yet: they are dropped, because they would
  // get the next visitor's. The announced call has both muids: by them, the next page sends what is stored of the present visitor.
  reset(by) {
    common = {};
    if (by) return; // another tab has replaced the cookies
    kit.abort_();
    if ((by = sender())) {
      setVisitor();
      announce('reset', by);
      kit.visit_(Visit.RESET);
    } else {
      if (kit.waiting_.size) warn('not sent:', kit.waiting_.size);
      [...kit.waiting_].map(unhold);
      erase();
    }
  },

  muid(callback: (muid: string) => void) {
    whenAllowed('', () => tell(callback, muid));
  },

  set(fields: object) {
    common = { ...common, ...fields };
  },

  // Installs a part.
  part(name: string, install: (commands: object, its: object) => void) {
    kit[name] = 1;
    install(commands, kit);
    release();
  },
};

let heard: string[] = []; // what tabs of the host had said when this one was left, frozen, or came back

const listen = () => (heard = said());

// hear repeats a call of another tab, unless it is known.
const hear = (call: string) => heard.includes(call) || run(JSON.parse(call));

// catchUp repeats what other tabs have said while this one was frozen or in the back/forward cache. Chromium tells it a moment
// later too: by then it is known. Without the cookie, consent was withdrawn since then, on another host.
const catchUp = () => {
  if (sender() || read()) said().map(hear);
  listen();
};

const begin = () => {
  addEventListener('pagehide', () => {
    kit.abort_();
    kit.left_ = 1;
    release();
    flush();
    listen();
  });
  addEventListener('pageshow', () => {
    if (!kit.left_) return; // the first time
    kit.left_ = 0;
    catchUp();
    kit.viewed_();
  });
  // Chromium freezes tabs that have been hidden for long. The events are the document's, and do not bubble.
  addEventListener('freeze', listen, 1 as any);
  addEventListener('resume', () => kit.left_ || catchUp(), 1 as any);
  // A page that returns from the back/forward cache is visible before pageshow.
  addEventListener('visibilitychange', () => kit.left_ || (document.hidden ? flush() : kit.retryNow_()));
  addEventListener('online', kit.retryNow_);
  // Not an assignment, which a page with a frozen Array.prototype forbids.
  Object.defineProperty(calls, 'push', { value: (...later: any[]) => later.map(run) });
  calls.splice(0).map(run);
};

// run makes one call. A withdrawal does not wait for a part, which may never come; it is also made in its turn.
const run = (call: ArrayLike<any>) => safely(() => {
  const [name, ...rest] = call as any;
  const make = () => commands[name](...rest);
  if (name == 'consent' && categories(rest[0]).analytics_storage == Word.DENIED) make();
  /init|part/.test(name) ? make() : hold(make);
});

// viewed sends a page view.
kit.viewed_ = (view?: object) => run(['event', 'PageView', view]);

// A prerendered page may never be shown, so its calls wait until it is. When a page has two loaders, only the first
// starts.
if (!calls.running) {
  calls.running = 1;
  // At once, also in a page that is being prerendered: a page that misses a withdrawal could write the cookie again.
  // A withdrawal removes the calls: then a grant is none. A reset stays one, because pages may clear localStorage at logout.
  addEventListener('storage', ({ newValue, key }) =>
    newValue && key!.startsWith(Key.SAID) && hear(storage()[key!] || newValue.replace(/granted/g, Word.DENIED)));
  if ((document as any).prerendering) addEventListener('prerenderingchange', begin, 1 as any);
  else begin();
}
