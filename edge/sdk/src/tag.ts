// The browser tag: runs the calls of mtag(). The init snippet queues calls in window.mtrem. When this script loads, it
// runs the queued calls, and from then on each call as it is made.

import { forgetVisitor, wrong, By } from './choice';
import { abort, add, deliver, install, sender, whenAllowed } from './delivery';
import { kit } from './kit';
import { page, watchViews } from './page';
import { allowed, follow } from './queue';
import { json } from './storage';
import { cookie, muid, root, uuid, write } from './visitor';
import { safely, soon, tell, warn } from './warn';
import type { Identifiers, Options } from '../npm/mtag';

interface Calls extends Array<ArrayLike<unknown>> {
  running?: boolean;
}

const calls: Calls = (window.mtrem = window.mtrem || []);

let address = ''; // of the tag host; empty before init
let common = {}; // fields of every event, from mtag('set')
const early: ArrayLike<unknown>[] = []; // calls of consent before init
let held: ArrayLike<unknown>[] | 0 = 0; // calls that wait until a part has loaded

const commands: Record<string, (...args: any[]) => void> = {
  __proto__: null as any,

  init(url: string, options = {} as Options) {
    if (address) return warn('only one tag per page, not used:', url);
    // A relative URL, or one without https://, would lead to the page's own host.
    const [, host, tagId] = /^(https?:\/\/\w[^?#]*?)\/*\?(?:.*&)?tagId=([^&#]+)/.exec(url) || [];
    if (!tagId) return wrong(url);
    install(host, tagId);
    // Other options, and categories of consent, come with a part.
    if (!kit.init && Object.keys(options).some((name) => name != 'pageviews' && (options as any)[name] && (name != 'consent' || typeof options.consent == 'object'))) {
      return load(host, 'options', ['init', url, options]);
    }
    address = host;
    if (kit.init) kit.init(options);
    else kit.choose(options.consent, By.DEFAULT);
    early.forEach(run);
    watchViews((view) => options.pageviews !== false && run(['event', 'PageView', view]));
  },

  // mtag('event', 'Purchase', {...}) or mtag('event', { type: 'Purchase', ... })
  event(name: any, fields?: any, recorded?: () => void) {
    if (typeof name == 'object') {
      recorded = fields;
      fields = name;
      name = (name.event || name.type) as string;
    }
    if (name && /^[a-z]\w*$/.test(name) && !kit.names && address) return load(address, 'names', ['event', name, fields, recorded]);
    // The tag host records each event_id once. An event without one would be recorded again by each retry.
    const event = Object.assign(page(), common, fields, { event: name, event_id: ((fields && fields.event_id) || uuid()) + '' });
    whenAllowed(event, (event) => {
      const edited = kit.edit(Object.assign({}, kit.visit(), { consent: kit.consent }, event));
      if (edited) add('mark', edited, recorded);
    });
  },

  // Links the visitor to an email, phone or deviceId: backend events with the same ones then get the visitor's muid.
  identify(identifiers: Identifiers) {
    whenAllowed(identifiers, (identifiers) => add('id', identifiers));
  },

  consent(...choice) {
    if (!address) early.push(['consent', ...choice]);
    else if (!kit.init && Object(choice[0]) === choice[0]) load(address, 'options', ['consent', ...choice]);
    else kit.choose(...choice);
  },

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

  // Installs a part.
  part(install: (commands: object, its: object) => void) {
    install(commands, kit);
    const waited = held || [];
    held = 0;
    waited.forEach(run);
  },
};

// load gets a part, and then makes the call.
function load(host: string, part: string, call: ArrayLike<unknown>) {
  held = [call];
  const script = document.createElement('script');
  script.src = host + '/script?with=' + part;
  script.onerror = () => warn('not loaded:', script.src);
  document.head.append(script);
}

// run makes one call. It writes an error of the call to the console, and never throws it into the page.
const run = (call: ArrayLike<any>): unknown =>
  held && call[0] != 'part' ? held.push(call) : safely(([name, ...rest]: any) => {
    if (!commands[name]) return warn('no command', name);
    commands[name](...rest);
  }, call);

function start() {
  Object.assign(kit, { abort, cookie, json, root, visitor: () => allowed && sender(), warn, write, wrong });
  deliver();
  follow((what) => (what === 0 ? (common = {}) : run(['consent', what, By.TAB])));
  // Not an assignment, which a page with a frozen Array.prototype forbids.
  Object.defineProperty(calls, 'push', { value: (...later: any[]) => later.forEach(run) });
  calls.splice(0).forEach(run);
  soon(() => address || wrong(calls), 5e3);
}

// A prerendered page may never be shown, so its calls wait until it is. When a page has two loaders, only the first
// starts.
if (!calls.running) {
  calls.running = true;
  if ((document as any).prerendering) document.addEventListener('prerenderingchange', start);
  else start();
}
