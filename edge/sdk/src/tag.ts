// The browser tag: runs the calls that pages make with mtag(), those that the init snippet queued in
// window.mtrem before this script came, and then each later one at once.

import { erase, uuid } from './visitor';
import { add, consented, deliver, forget, open } from './queue';
import { page, watch } from './page';
import { warn } from './warn';
import type { CustomFields, Identifiers } from '../mtag';

interface Calls extends Array<ArrayLike<unknown>> {
  running?: boolean;
}

const calls: Calls = (window.mtrem = window.mtrem || []);

let initialised = false;
const common = {}; // the fields of mtag('set')

const commands: Record<string, (first: any, second?: any) => void> = {
  init(url: string, options?: { consent?: boolean }) {
    if (initialised) return warn('only one tag may be installed per page');
    const { origin, searchParams } = new URL(url);
    const tagId = searchParams.get('tagId');
    if (!tagId) return warn('the init URL has no tagId');
    initialised = true;
    // Consent that is not given is not withdrawn: many pages ask anew at each load, and the muid of an earlier
    // visit stays where it is until they have their answer.
    open(origin, tagId, !!options && options.consent === true);
    watch(() => run(['event', 'PageView']));
  },

  // mtag('event', 'Purchase', {...}) or mtag('event', { type: 'Purchase', ... })
  event(name: string | CustomFields, fields?: CustomFields) {
    if (typeof name == 'object') {
      fields = name;
      name = (name.event || name.type) as string;
    }
    // Without an id that the tag host knows again, each try would be recorded.
    const id = (fields && fields.event_id) || uuid();
    add('mark', Object.assign(page(), common, fields, { event: name, event_id: id + '' }));
  },

  // Links the visitor to an email, phone or deviceId, so that backend events find them.
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

// A call that goes wrong is reported, and never the page's problem.
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

// A page that is prerendered may never be seen: its calls wait until it is. A second loader finds the first at
// work.
if (!calls.running) {
  calls.running = true;
  if ((document as any).prerendering) document.addEventListener('prerenderingchange', start, { once: true });
  else start();
}
