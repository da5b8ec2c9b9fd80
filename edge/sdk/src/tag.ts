// The browser tag: runs the calls of mtag(). The init snippet queues calls in self.mtrem. When this script loads, it
// runs the queued calls, and from then on each call as it is made.

import { categories, Visit, Word } from './choice';
import { page, watchViews } from './page';
import { kit } from './kit';
import { add, flush, whenAllowed } from './delivery';
import { base, hold, need, release, start } from './parts';
import { safely, soon, tell, warn } from './warn';
import { Key, keys, storage } from './storage';
import { unhold } from './queue';
import { announce, cookie, Cookie, erase, muid, sender, setVisitor, unique } from './visitor';
import type { Identifiers, Options } from '../npm/mtag';

interface Calls extends Array<ArrayLike<unknown>> {
  running?: number;
}

const calls: Calls = (self.mtrem = self.mtrem || []);

let shown: number; // when the page last returned from the back/forward cache, in ms since 1970
let common = {}; // fields of every event, from mtag('set')

const commands: Record<string, (...args: any[]) => void> = {
  init(url: string, options = {} as Options) {
    // A relative URL, or one without https://, would lead to the page's own host.
    const found = /^(https?:\/\/\w[^?#]*?)\/*\?(.*&)?tagId=([^&#]+)/.exec(url);
    if (base || !found) return warn('wrong:', url);
    const choose = () => kit.init_(options);
    start(found, () => (Object.keys({ consent: 0, ...options })[1] || ([] as any).toJSON ? need('options', choose) : choose()), watchViews);
  },

  // mtag('event', 'Purchase', {...}) or mtag('event', { type: 'Purchase', ... })
  event(name: any, fields?: any, recorded?: () => void) {
    if (Object(name) === name) {
      recorded = fields;
      fields = name;
      name = name.type;
    }
    if (name > '[' && !kit.names) return need('names', () => commands.event(name, fields, recorded), () => warn('not sent:', name)); // a name of GA4
    // The tag host records each event_id once. An event without one would be recorded again by each retry.
    const event = { ...page(), pageTitle: document.title, ...common, ...fields, event: name, event_id: ((fields || 0).event_id || unique()) + '' };
    whenAllowed(event, (event) => {
      const edited = kit.edit_({ ...kit.visit_(), consent: kit.consent_, ...event });
      if (edited) add('mark', edited, recorded);
    });
  },

  // Links the visitor to an email, phone or deviceId: backend events with the same ones then get the visitor's muid.
  identify(identifiers: Identifiers) {
    whenAllowed(identifiers, (identifiers) => add('id', identifiers));
  },

  consent(...call) {
    // Chromium tells a page of a grant that was made before it returned from the back/forward cache. Without the cookie, consent
    // has been withdrawn on another host since then.
    (call[0] && call[3] < shown && !cookie(Cookie.MUID)) || kit.choose_(...call);
  },

  // Starts a new visitor. Waiting events keep the present muid. The cookies are replaced, not deleted: other tabs take a
  // missing cookie for a withdrawal. Without consent, waiting events have no muid yet: they are dropped, because they would
  // get the next visitor's.
  reset(by) {
    common = {};
    if (by) return; // another tab has replaced the cookies
    kit.abort_();
    if (sender()) {
      setVisitor();
      announce('reset');
      kit.visit_(Visit.RESET);
    } else {
      if (kit.waiting_.size) warn('not sent:', kit.waiting_.size);
      kit.waiting_.forEach(unhold);
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

const begin = () => {
  const said = () => keys(Key.SAID).map((key) => storage()[key]);
  let heard: string[]; // what other tabs had said when the page was left
  addEventListener('pagehide', () => {
    kit.abort_();
    kit.left_ = 1;
    release();
    flush();
    heard = said();
  });
  addEventListener('pageshow', () => {
    if (!kit.left_) return; // the first time
    kit.left_ = 0;
    shown = Date.now();
    said().map((call) => heard.includes(call) || run(JSON.parse(call)));
    kit.viewed_();
  });
  addEventListener('visibilitychange', () => (document.hidden ? kit.left_ || flush() : kit.retryNow_()));
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
  addEventListener('storage', ({ key, newValue }) => newValue && key!.startsWith(Key.SAID) && run(JSON.parse(newValue)));
  if ((document as any).prerendering) document.addEventListener('prerenderingchange', begin);
  else begin();
}
