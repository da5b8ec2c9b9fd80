// ga4 sends the pre-defined events that a page makes for GA4: pushes to dataLayer, for GTM, and calls of gtag(), which
// pushes its arguments there.

import { send, start, whenPushed } from './extra';

const COMMERCE = ('view_item view_cart add_to_cart remove_from_cart add_to_wishlist begin_checkout add_payment_info ' +
  'add_shipping_info purchase refund').split(' ');
const OTHERS = 'search share login sign_up generate_lead'.split(' ');
const RENAMED: Record<string, string> = { sign_up: 'Signup', generate_lead: 'Lead' };

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
    if (entry[0] == 'event') return gtag(entry[1], entry[2] || {});
    if ('ecommerce' in entry) ecommerce = entry.ecommerce; // null clears it
    // Some pages push items beside event, without ecommerce.
    convert(entry.event, COMMERCE.includes(entry.event) && !entry.items ? Object.assign({}, entry, ecommerce) : entry);
  } catch (error) {
    console.warn('mtag:', error);
  }
}

// gtag reads a call of gtag('event', name, params). Many pages make the same call a second time for Google Ads.
function gtag(name: string, params: any) {
  const targets: string[] = [].concat(params.send_to || []);
  if (!targets[0] || targets.some((target) => !/^(AW|DC)-/.test(target))) convert(name, params);
}

// convert sends the event that has this name in GA4. It takes only the parameters that the event has in GA4: others may
// be personal.
function convert(name: string, params: any) {
  if (!COMMERCE.concat(OTHERS).includes(name)) return;
  const { currency, items, method } = params;
  const list: any[] | undefined = Array.isArray(items) ? items.filter(Boolean) : undefined;
  // GA4 too counts a transaction once, also when its page is loaded again.
  const id = params.event_id || name == 'purchase' && params.transaction_id;
  send(RENAMED[name] || name.replace(/(^|_)(.)/g, (_, before, letter) => letter.toUpperCase()), {
    event_id: typeof id != 'object' && /^[ -~]{1,128}$/.test(id) && id || undefined,
    value: number(params.value),
    currency: currency || list && list[0] && list[0].currency,
    products: list && list.map(product),
    transaction_id: text(params.transaction_id),
    coupon: params.coupon,
    shipping_cost: number(params.shipping),
    tax: number(params.tax),
    shipping_tier: params.shipping_tier,
    payment_event: params.payment_type,
    item_id: params.item_id,
    search_term: params.search_term,
    [name == 'share' ? 'share_method' : 'method']: method,
  });
}

// product converts an item. It also reads the older names without item_.
function product(item: any) {
  const get = (name: string) => item['item_' + name] || item[name];
  return {
    id: text(get('id') || get('name')),
    name: get('name'),
    category: [1, 2, 3, 4, 5].map((n) => get('category' + (n > 1 ? n : ''))).filter(Boolean).join() || undefined,
    brand: get('brand'),
    variant: get('variant'),
    price: number(item.price),
    quantity: number(item.quantity),
    coupon: item.coupon,
    discount: number(item.discount),
  };
}

// text converts ids that the page has as numbers.
function text(value: any) {
  return value == null ? undefined : value + '';
}

// number converts numbers that the page has as text. What is no number is left out.
function number(value: any) {
  return value == null || value === '' || !isFinite(value) ? undefined : +value;
}
