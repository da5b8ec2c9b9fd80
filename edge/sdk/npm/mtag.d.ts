// The types of mtag(), the function of the browser tag, and of the pre-defined events. A project without the npm package
// copies this file, or lists it in its tsconfig.json under "files".

export interface Product {
  /** Unique product id. */
  id: string;
  name?: string;
  /** For example a comma-separated path. */
  category?: string;
  variants?: Variant[];
  /** How many were added or purchased. */
  quantity?: number;
  price?: number;
  description?: string;
  /** Coupon used at checkout. */
  coupon?: string;
  /** An amount of money. Convert a percentage into an amount. */
  discount?: number;
}

export interface Variant {
  /** For example size or colour pairs. */
  attributes: Record<string, string>;
  price: {
    original: number;
    discounted?: number;
    /** Currency code. */
    currency: string;
  };
  isAvailable: boolean;
}

/** What identifies a visitor besides the muid in the tag's cookie. The service finds the visitor by hashes of these. */
export interface Identifiers {
  email?: string;
  phone?: string;
  deviceId?: string;
}

/** Fields that every event may have. The tag itself adds the fields of the page. */
export interface EventFields {
  email?: string;
  phone?: string;
  /** The visitor, instead of the one of the tag's cookie. */
  muid?: string;
  /**
   * Events with the same name and the same event_id are recorded once within 7 days. By default the tag sends a random
   * event_id.
   */
  event_id?: string;
}

export interface Sale extends EventFields {
  value?: number;
  /** Currency code, 3 characters. */
  currency?: string;
  products?: Product[];
}

export interface ItemView extends Sale {
  content_event?: 'product' | 'image' | 'video' | 'blog' | (string & {});
}

export interface PaymentInfo extends Sale {
  payment_event?: string;
}

export interface ShippingInfo extends Sale {
  shipping_tier?: string;
}

/** value is the total of the transaction. */
export interface Checkout extends Sale {
  shipping_cost?: number;
  tax?: number;
}

export interface Order extends Checkout {
  transaction_id?: string;
}

export interface Return extends Sale {
  transaction_id?: string;
}

export interface Search extends EventFields {
  item_id?: string;
  search_term?: string;
}

export interface Share extends EventFields {
  item_id?: string;
  share_method?: string;
}

export interface Lead extends EventFields {
  value?: number;
  currency?: string;
}

export interface Application extends EventFields {
  application_id?: string;
}

/** The pre-defined events by name. */
export interface Events {
  ViewContent: EventFields;
  ViewItem: ItemView;
  Login: EventFields;
  Signup: EventFields;
  CompleteRegistration: EventFields;
  StartTrial: Sale;
  AddPaymentInfo: PaymentInfo;
  AddShippingInfo: ShippingInfo;
  ViewCart: Sale;
  AddToCart: Sale;
  AddToWishlist: Sale;
  RemoveFromCart: Sale;
  BeginCheckout: Checkout;
  Purchase: Order;
  Refund: Return;
  Search: Search;
  Share: Share;
  Subscribe: Sale;
  Lead: Lead;
  SubmitApplication: Application;
  Contact: EventFields;
  Donate: EventFields;
  Schedule: EventFields;
}

/** The fields of the event with that name: those of a pre-defined event, or those that every event may have. */
export type Fields<Name extends string> = Name extends keyof Events ? Events[Name] : EventFields;

/** A category of consent, as Google Consent Mode names them. */
export type Category = 'ad_storage' | 'analytics_storage' | 'ad_user_data' | 'ad_personalization';

/** What the visitor has agreed to. Without analytics_storage the tag stores and sends nothing. */
export type Categories = { [category in Category]?: 'granted' | 'denied' };

/** An event as the tag is about to send it. */
export type OutgoingEvent = { event: string; event_id: string; [field: string]: any };

export interface Options {
  /** Whether the visitor consents to tracking. Required without consentMode, and not used with it. */
  consent?: boolean | Categories;
  /** Follows the calls of gtag('consent', …) on the page. */
  consentMode?: boolean;
  /** The visitor's region, as AT or US-CA: with consentMode, the defaults for it count. */
  region?: string;
  /** Treats a visitor whose browser sends Global Privacy Control as one without consent. */
  gpc?: 'respect';
  /** false: the page sends its page views itself. */
  pageviews?: boolean;
  /** Edits each event before it is sent. An event is dropped when this returns false or null, or throws. */
  beforeSend?: (event: OutgoingEvent) => OutgoingEvent | boolean | null | void;
  /** Writes to the console what is queued, sent and recorded. */
  debug?: boolean;
}

/** The commands besides event, with their arguments. */
export interface Commands {
  /** Installs the tag: the URL of its host with ?tagId=. */
  init: [url: string, options: Options & ({ consent: boolean | Categories } | { consentMode: true })];
  /** Links the visitor to identifiers. Backend events with these identifiers then get the same muid. */
  identify: [identifiers: Identifiers];
  /** Tells the tag that the visitor has given or withdrawn consent: at all, or by category. */
  consent: [given: boolean | Categories];
  /** Adds fields to every later event. */
  set: [fields: object];
  /** Makes the next user of the browser another visitor: call it at logout. */
  reset: [];
  /** Carries the visitor to these root domains of the same merchant. It comes with the part link. */
  link: [domains: string[]];
  /** Calls back with the visitor's muid, once there is consent. */
  muid: [callback: (muid: string) => void];
}

/** Fields of an event: its own as they are declared, and any others. */
export type Checked<Given, Name extends string> = {
  [Field in keyof Given]: Field extends keyof Fields<Name> ? Fields<Name>[Field] : unknown;
};

export interface Mtag {
  <Command extends keyof Commands>(command: Command, ...rest: Commands[Command]): void;
  /** Sends an event; names are PascalCase. recorded is called when the service has recorded it. */
  <Name extends string, Given extends Checked<Given, Name>>(command: 'event', event: { type: Name } & Given, recorded?: () => void): void;
  <Name extends string, Given extends Checked<Given, Name>>(command: 'event', name: Name, fields?: Given, recorded?: () => void): void;
}

declare global {
  interface Window {
    /** The calls of mtag(): each is its arguments object, or an array. */
    mtrem?: ArrayLike<unknown>[];
    mtag?: Mtag;
  }
  /** Made by the init snippet. */
  const mtag: Mtag;
}
