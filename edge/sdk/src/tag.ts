// The browser tag: runs the calls of mtag(). The init snippet queues calls in window.mtrem. When this script loads, it
// runs the queued calls, and from then on each call as it is made.

import { erase, uuid } from './visitor';
import { add, consented, deliver, forget, open } from './queue';
import { page, watchViews } from './page';
import { warn } from './warn';
import type { CustomFields, Identifiers } from '../mtag';

interface Calls extends Array<ArrayLike<unknown>> {
  running?: boolean;
}

const calls: Calls = (window.mtrem = window.mtrem || []);

let initialised = false;
const common = {}; // fields of every event, from mtag('set')

const commands: Record<string, (first: any, second?: any) => void> = {
  init(url: string, options?: { consent?: boolean }) {
    if (initialised) return warn('only one tag may be installed per page');
    const { origin, searchParams } = new URL(url);
    const tagId = searchParams.get('tagId');
    if (!tagId) return warn('the init URL has no tagId');
    initialised = true;
    // consent: false here does not delete the cookie, because the visitor has not withdrawn consent. Many pages ask for
    // it at each load, and the muid of an earlier visit must still be there when the visitor agrees.
    open(origin, tagId, !!options && options.consent === true);
    watchViews(() => run(['event', 'PageView']));
  },

  // mtag('event', 'Purchase', {...}) or mtag('event', { type: 'Purchase', ... })
  event(name: string | CustomFields, fields?: CustomFields) {
    if (typeof name == 'object') {
      fields = name;
      name = (name.event || name.type) as string;
    }
    // The tag host records each event_id once. An event without one would be recorded again by each retry.
    const id = (fields && fields.event_id) || uuid();
    add('mark', Object.assign(page(), common, fields, { event: name, event_id: id + '' }));
  },

  // Links the visitor to an email, phone or deviceId: backend events with the same ones then get the visitor's muid.
  identify(identifiers: Identifiers) {
    add('id', Object.assign({}, identifiers));
  },

  consent(given: boolean) {
    consented(given === true);
    if (given === true) return;
    forget();
    erase();
  },

  set(fields: object) {
    Object.assign(common, fields);
  },
};

// run makes one call. It writes an error of the call to the console, and never throws it into the page.
function run(call: ArrayLike<unknown>) {
  try {
    commands[call[0] as string](call[1], call[2]);
  } catch (error) {
    warn(call, error);
  }
}

function start() {
  deliver();
  calls.push = (...later) => {
    later.forEach(run);
    return calls.length;
  };
  calls.splice(0).forEach(run);
}

// A prerendered page may never be shown, so its calls wait until it is. When a page has two loaders, only the first
// starts.
if (!calls.running) {
  calls.running = true;
  if ((document as any).prerendering) document.addEventListener('prerenderingchange', start, { once: true });
  else start();
}
