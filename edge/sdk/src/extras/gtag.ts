// What GA4's events and parameters are called here.

const COMMERCE = ('view_item view_item_list select_item view_promotion select_promotion view_cart add_to_cart remove_from_cart ' +
  'add_to_wishlist begin_checkout add_payment_info add_shipping_info purchase refund').split(' ');
const OTHERS = 'search share login sign_up generate_lead'.split(' ');
const RENAMED: Record<string, string> = { __proto__: null as any, sign_up: 'Signup', generate_lead: 'Lead' };

// isCommerce reports whether an event takes its parameters from ecommerce.
export const isCommerce = (name: string) => COMMERCE.includes(name);

// isKnown reports whether GA4 gives the event's parameters a meaning.
export const isKnown = (name: string) => COMMERCE.concat(OTHERS).includes(name);

// eventName returns the name of an event of GA4, in PascalCase.
export const eventName = (name: string) =>
  RENAMED[name] || name.replace(/(?:^|[^a-zA-Z0-9]+)([a-zA-Z0-9])/g, (_, letter) => letter.toUpperCase());

// fieldsOf returns the fields of an event that GA4 knows. It takes only the parameters that the event has in GA4: others may
// be personal.
export function fieldsOf(name: string, params: any) {
  const { currency, items, method } = params;
  const list: any[] | undefined = Array.isArray(items) ? items.filter(Boolean) : undefined;
  // GA4 too counts a transaction once, also when its page is loaded again.
  const id = params.event_id || name == 'purchase' && params.transaction_id;
  const fields: Record<string, unknown> = {
    event_id: typeof id != 'object' && /^[ -~]{1,128}$/.test(id) && id || undefined,
    value: number(params.value),
    currency: currency || list && list[0] && list[0].currency,
    products: list && list.map(product),
    transaction_id: text(params.transaction_id),
    shipping_cost: number(params.shipping),
    tax: number(params.tax),
    payment_event: params.payment_type,
    [name == 'share' ? 'share_method' : 'method']: method,
  };
  for (const same of ('coupon shipping_tier item_id search_term item_list_id item_list_name promotion_id promotion_name ' +
    'creative_name creative_slot').split(' ')) fields[same] = params[same];
  return fields;
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
