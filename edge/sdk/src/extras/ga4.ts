// ga4 sends the events that a page makes for GA4: pushes to dataLayer, for GTM, and calls of gtag(), which pushes its
// arguments there.

import { send, start, whenPushed } from './extra';
import { eventName, fieldsOf, isCommerce, isKnown } from './gtag';

// The events that GA4 makes by itself, as the tag or its extras do.
const AUTOMATIC = /^(page_view|session_start|first_visit|user_engagement|scroll|click|file_download|form_start|form_submit)$/;

let followed: unknown[]; // the dataLayer whose push is ours
const seen = new WeakSet<object>(); // entries that were read
let ecommerce: any; // of the last push that had one

start('ga4', () => {
  follow();
  // Until the page is loaded, it may make another array.
  document.addEventListener('readystatechange', follow);
});

// follow reads what is in dataLayer, and then every push.
function follow() {
  const page = window as any;
  const layer = (page.dataLayer = page.dataLayer || []);
  if (layer == followed || !Array.isArray(layer)) return;
  followed = layer;
  let pushed = false;
  whenPushed(layer, (entry) => pushed || !seen.has(entry) ? read(entry) : 0);
  pushed = true;
}

// read reads an entry. An error goes to the console: the page's push must not fail.
function read(entry: any) {
  try {
    if (!entry || typeof entry != 'object') return;
    seen.add(entry);
    const [command, name, params] = [entry[0], entry[1], entry[2] || {}];
    if (command == 'set') person(name == 'user_data' ? { user_data: params } : name);
    if (command == 'config') person(params);
    if (command == 'event') gtag(name, params);
    if (typeof command == 'string') return;
    person(entry);
    if ('ecommerce' in entry) ecommerce = entry.ecommerce; // null clears it
    // Some pages push items beside event, without ecommerce.
    convert(entry.event, isCommerce(entry.event) && !entry.items ? Object.assign({}, entry, ecommerce) : entry);
  } catch (error) {
    console.warn('mtag:', error);
  }
}

// person takes over who the user is: user_id as a field of later events, user_data as identifiers.
function person(params: any) {
  const { user_id, user_data } = params || {};
  if (user_id !== undefined) window.mtrem!.push(['set', { user_id: user_id === null ? undefined : user_id + '' }]);
  const first = (value: any) => [].concat(value || [])[0];
  const email = user_data && first(user_data.email);
  const phone = user_data && first(user_data.phone_number);
  if (email || phone) window.mtrem!.push(['identify', { email, phone }]);
}

// gtag reads a call of gtag('event', name, params). Many pages make the same call a second time for Google Ads.
function gtag(name: string, params: any) {
  const targets: string[] = [].concat(params.send_to || []);
  person(params);
  if (!targets[0] || targets.some((target) => !/^(AW|DC)-/.test(target))) convert(name, params);
}

// convert sends an event. Of an event that GA4 does not know, it takes what is a text, a number or a boolean.
function convert(name: any, params: any) {
  if (typeof name != 'string' || !/^[a-z][\w -]*$/.test(name) || AUTOMATIC.test(name)) return;
  let fields: Record<string, unknown> = {};
  if (isKnown(name)) fields = fieldsOf(name, params);
  else for (const field in params) {
    if (/^(string|number|boolean)$/.test(typeof params[field]) && !/^(event|send_to|user_id|event_timeout|gtm\..*)$/.test(field)) fields[field] = params[field];
  }
  send(eventName(name), fields);
}
