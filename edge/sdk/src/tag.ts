// The browser tag: runs the calls of mtag(). The init snippet queues calls in window.mtrem. When this script loads, it
// runs the queued calls, and from then on each call as it is made.

import { muid, uuid } from './visitor';
import { choose, complete, configure, forgetVisitor, wrong } from './choice';
import { add, deliver, install, whenAllowed } from './delivery';
import { page, watchViews } from './page';
import { safely, startTrace, tell, warn } from './warn';
import type { CustomFields, Identifiers, Options } from '../mtag';

interface Calls extends Array<ArrayLike<unknown>> {
  running?: boolean;
}

const calls: Calls = (window.mtrem = window.mtrem || []);

let initialised = false;
let common = {}; // fields of every event, from mtag('set')

const commands: Record<string, (...args: any[]) => void> = {
  __proto__: null as any,

  init(url: string, options = {} as Options) {
    if (initialised) return warn('only one tag per page, not used:', url);
    // A relative URL, or one without https://, would lead to the page's own host.
    const [, address, tagId] = /^(https?:\/\/\w[^?#]*?)\/*\?(?:.*&)?tagId=([^&#]+)/.exec(url) || [];
    if (!tagId) return wrong(url);
    initialised = true;
    if (options.debug) startTrace();
    install(address, tagId);
    configure(options);
    watchViews((view) => options.pageviews !== false && run(['event', 'PageView', view]));
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
      if (edited) add('mark', edited, recorded);
    });
  },

  // Links the visitor to an email, phone or deviceId: backend events with the same ones then get the visitor's muid.
  identify(identifiers: Identifiers) {
    whenAllowed(identifiers, (identifiers) => add('id', identifiers));
  },

  consent: choose,

  reset() {
    common = {};
    forgetVisitor();
  },

  muid(callback: (muid: string) => void) {
    whenAllowed('', () => tell(callback, muid));
  },

  set(fields: object) {
    Object.assign(common, fields);
  },
};

// run makes one call. It writes an error of the call to the console, and never throws it into the page.
const run = (call: ArrayLike<any>) =>
  safely(([name, ...rest]: any) => {
    if (!commands[name]) return warn('no command', name + ', write ' + Object.keys(commands));
    commands[name](...rest);
  }, call);

function start() {
  deliver();
  calls.push = (...later) => later.forEach(run) as any;
  calls.splice(0).forEach(run);
  setTimeout(() => {
    if (!initialised) wrong(calls);
  }, 5e3);
}

// A prerendered page may never be shown, so its calls wait until it is. When a page has two loaders, only the first
// starts.
if (!calls.running) {
  calls.running = true;
  if ((document as any).prerendering) document.addEventListener('prerenderingchange', start);
  else start();
}
