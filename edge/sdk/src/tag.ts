// The browser tag: runs the calls of mtag(). The init snippet queues calls in window.mtrem. When this script loads, it
// runs the queued calls, and from then on each call as it is made.

import { eraseAttribution } from './attribution';
import { choose, complete, configure, whenAllowed } from './choice';
import { add, deliver, open } from './queue';
import { page, watchViews } from './page';
import { erase, uuid, visitor } from './visitor';
import { safely, startTrace, tell, warn } from './warn';
import type { CustomFields, Identifiers, Options } from '../mtag';

interface Calls extends Array<ArrayLike<unknown>> {
  running?: boolean;
}

const calls: Calls = (window.mtrem = window.mtrem || []);

let initialised = false;
const common = {}; // fields of every event, from mtag('set')

const commands: Record<string, (first: any, second?: any, third?: any) => void> = {
  init(url: string, options = {} as Options) {
    if (initialised) return warn('only one tag may be installed per page');
    const { origin, searchParams } = new URL(url);
    const tagId = searchParams.get('tagId');
    if (!tagId) return warn('the init URL has no tagId');
    initialised = true;
    if (options.debug) startTrace();
    open(origin, tagId);
    configure(options);
    watchViews(() => options.pageviews !== false && run(['event', 'PageView']));
  },

  // mtag('event', 'Purchase', {...}) or mtag('event', { type: 'Purchase', ... })
  event(name: string | CustomFields, fields?: any, recorded?: () => void) {
    if (typeof name == 'object') {
      recorded = fields;
      fields = name;
      name = (name.event || name.type) as string;
    }
    // The tag host records each event_id once. An event without one would be recorded again by each retry.
    const id = (fields && fields.event_id) || uuid();
    const event = Object.assign(page(), common, fields, { event: name, event_id: id + '' });
    whenAllowed(event, (event) => {
      const edited = complete(event);
      if (edited) add('mark', Object.assign({ muid: visitor(), event_id: event.event_id }, edited), recorded);
    });
  },

  // Links the visitor to an email, phone or deviceId: backend events with the same ones then get the visitor's muid.
  identify(identifiers: Identifiers) {
    whenAllowed(identifiers, (identifiers) => add('id', Object.assign({ muid: visitor() }, identifiers)));
  },

  consent: choose,

  // After a logout the next user of the browser is another visitor. Events that wait keep the muid of now.
  reset() {
    erase();
    eraseAttribution(true);
  },

  muid(callback: (muid: string) => void) {
    whenAllowed('', () => tell(callback, visitor()));
  },

  set(fields: object) {
    Object.assign(common, fields);
  },
};

// run makes one call. It writes an error of the call to the console, and never throws it into the page.
function run(call: ArrayLike<unknown>) {
  safely(() => commands[call[0] as string](call[1], call[2], call[3]), call);
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
