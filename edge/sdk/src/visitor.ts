// The visitor: the muid and its cookie. The tag's cookies are on the root domain, so all hosts of a site share them.

import { kit } from './kit';
import { json, Key, store } from './storage';
import { withdraw } from './delivery';
import { making } from './queue';
import { By } from './choice';
import { soon } from './warn';

export const enum Cookie {
  MUID = '_muid',
  VISIT = '_mtag.visit', // of attribution
  PROBE = '_mtag', // what the name of a cookie begins with that root sets and deletes
}

const enum Life {
  SECONDS = 400 * 24 * 60 * 60, // 400 days, the longest that browsers keep a cookie
}

export let muid = ''; // of the last look
let domain = ''; // the root domain; empty before the first look, and where cookies are denied
let kept: unknown; // whether the cookie was there after it was written: it is not where cookies are denied, or a script may not replace it

// sender returns the visitor's muid, from the cookie or a new one; without consent it returns nothing. Once per page it
// writes the cookie, to set or renew it. Where cookies are denied, each page load gets a new muid. A cookie that is missing
// later means that another page of the site has withdrawn consent. To read cookies after a write is slow. Another tab that has
// told of its visitor may be ahead of its cookie: some browsers tell each process of a cookie by itself.
export const sender = (visitor?: string) => {
  if (!kit.allowed_) return;
  if (!muid) {
    const found = read();
    // A cookie of this host alone would hide the visitor's own on other hosts.
    if (found) write(Cookie.MUID, '', 0, '');
    setVisitor(read() || found || visitor);
    // Another tab may have written its own. The calls of one task, and their request, look once.
  } else if (kept && !making) muid = read() || '';
  return muid || withdraw();
};

// setVisitor writes the cookie: with that muid, or with a new one.
export const setVisitor = (value?: string) => {
  write(Cookie.MUID, (muid = value || uuid()), Life.SECONDS);
  kept = read();
  kit.renew_ = '&renew=1'; // some browsers keep a cookie that a script has written for only a week
};

// erase deletes the cookies, and makes the next visitor a new one. It leaves those of another muid alone. It does so again half a
// second later: the last answer, or a page that has just been loaded, may have renewed them at the last moment, and a busy browser
// may be slow to do so.
export const erase = (only: unknown = read() || muid, last?: unknown) => {
  [Cookie.MUID, Cookie.VISIT].map((name) => cookie(name) && (read() || only) == only && (write(name, '', 0, ''), write(name, '', 0)));
  muid = '';
  last || soon(() => kit.allowed_ || erase(only, 1), 500);
};

// read returns the muid of the cookie, undefined without one that the tag host accepts. Many visitors would share an "undefined".
export const read = () => [cookie(Cookie.MUID)].find((value) => /^(?!undefined|null$)[^\s",\\]{1,256}$/.test(value));

// cookie returns the value of a cookie. Of several it is the last: browsers list cookies of a longer path first. It returns ''
// without one, and where cookies throw, as in a sandbox.
export const cookie = (kit.cookie_ = (name: string) => {
  try {
    return ('; ' + document.cookie).split('; ' + name + '=').slice(1).pop()!.split(';')[0];
  } catch {
    return '';
  }
});

// write sets a cookie. An empty domain is the host alone.
const write = (kit.write_ = (name: string, value: string, seconds: number, on = kit.root_()) => {
  try {
    document.cookie = name + '=' + value + ';path=/;max-age=' + seconds + ';samesite=lax;domain=' + on + (location.protocol > 'https' ? ';secure' : '');
  } catch {}
});

// root returns the root domain of the page. Browsers refuse cookies on a public suffix, so the root domain is the
// shortest one on which a probe cookie is kept. A single label is one only when it is the host itself, such as localhost:
// every other one is a public suffix. The root domain is '' where cookies are denied.
kit.root_ = () => {
  const labels = location.hostname.split('.');
  const probe = Cookie.PROBE + unique(); // another tab's probe must not replace it
  for (let candidate: string, n = labels.length - 1 || 1; !domain && n--; cookie(probe) && write(probe, '', 0, (domain = candidate))) {
    write(probe, '1', 9, (candidate = labels.slice(n).join('.')));
  }
  return domain;
};

// uuid makes a random UUID. Without TLS there is no crypto.randomUUID, but the address of a Blob ends with one.
export const uuid = () => {
  try {
    return crypto.randomUUID();
  } catch {
    return URL.createObjectURL(new Blob()).slice(-36);
  }
};

const page = uuid();
let made = 0;

// unique makes a text that no page ever makes again. A UUID for each event would take a fifth of its call.
export const unique = () => page + made++;

// announce makes the other tabs of the host repeat a call: at once, or when they return from the back/forward cache. The browser
// tells them only of values that change, so the value includes the time. The muid is for a tab that does not see the cookie
// yet. A withdrawal removes it all.
export const announce = (...call: unknown[]) => store(Key.SAID + call[0], json([...call, By.TAB, muid, Date.now()]));
