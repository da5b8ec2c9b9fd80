// The browser tag: runs the calls of mtag(). The init snippet queues calls in window.mtrem. When this script loads, it
// runs the queued calls, and from then on each call as it is made.

import { uuid } from './visitor';
import { add, consented, deliver, install, withdraw } from './delivery';
import { page, watchViews } from './page';
import { waiting } from './queue';
import { warn } from './warn';
import type { CustomFields, Identifiers } from '../mtag';

interface Calls extends Array<ArrayLike<unknown>> {
  running?: boolean;
}

const calls: Calls = (window.mtrem = window.mtrem || []);

const INIT = "write mtag('init', 'https://HOST?tagId=ID', { consent: true or false })";

let initialised = false;
const common = {}; // fields of every event, from mtag('set')

const commands: Record<string, (first: any, second?: any) => void> = {
  __proto__: null as any,

  init(url: string, options?: { consent?: boolean }) {
    if (initialised) return warn('only one tag may be installed per page');
    // A relative URL, or one without https://, would lead to the page's own host.
    const [, address, tagId] = /^(https?:\/\/\w[^?#]*?)\/*\?(?:.*&)?tagId=([^&#]+)/.exec(url) || [];
    if (!tagId) return warn(INIT + ', not', url);
    initialised = true;
    install(address, tagId, given(options && options.consent));
    watchViews((view) => commands.event('PageView', view));
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

  consent(choice: boolean) {
    if (given(choice)) consented();
    else withdraw();
  },

  set(fields: object) {
    Object.assign(common, fields);
  },
};

// given returns whether the visitor consents. Only true is consent.
function given(consent: unknown) {
  if (typeof consent != 'boolean') warn('consent must be true or false, not', consent);
  return consent === true;
}

// run makes one call. It writes an error of the call to the console, and never throws it into the page.
function run(call: ArrayLike<unknown>) {
  try {
    const command = commands[call[0] as string];
    if (!command) return warn('no command', call[0] + ', write ' + Object.keys(commands));
    command(call[1], call[2]);
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
  setTimeout(() => {
    if (!initialised && waiting.size) warn(INIT);
  }, 5e3);
}

// A prerendered page may never be shown, so its calls wait until it is. When a page has two loaders, only the first
// starts.
if (!calls.running) {
  calls.running = true;
  if ((document as any).prerendering) document.addEventListener('prerenderingchange', start, { once: true });
  else start();
}
