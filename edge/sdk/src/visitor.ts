// The visitor: the muid and its cookie. The tag's cookies are on the root domain, so all hosts of a site share them.

export const enum Cookie {
  MUID = '_muid',
  VISIT = '_mtag.visit', // of attribution
  PROBE = '_mtag', // root sets and deletes it
}

const enum Life {
  SECONDS = 400 * 24 * 60 * 60, // 400 days, the longest that browsers keep a cookie
}

// jar has the cookies. In a sandbox it has none.
let jar: { cookie: string } = Object.freeze({ cookie: '' });
try {
  document.cookie;
  jar = document;
} catch {}

export let muid = ''; // of the last look
let kept = false; // the cookie could be set
let looked = false; // in this task. A look takes longer than all else that a call does
let domain: string | undefined; // the root domain; undefined before the first look

// visitor returns the muid of the cookie, or a new one. Once per page it writes the cookie, to set or renew it, but leaves
// it alone when the tag host of the page can renew it: some browsers keep a cookie for only a week once a script has
// written it. Where cookies are denied, each page load gets a new muid. It returns '' when another page of the site has
// deleted the cookie: then consent was withdrawn there.
export function visitor(base: string) {
  if (!muid) {
    const found = read();
    // A cookie of this host alone would hide the visitor's own on other hosts.
    if (cookie(Cookie.MUID)) write(Cookie.MUID, '', 0, '');
    muid = read();
    if (!muid || !renewable(base)) setVisitor(muid || found);
    kept = !!cookie(Cookie.MUID);
  }
  if (kept && !looked) {
    looked = true;
    Promise.resolve().then(() => (looked = false));
    muid = cookie(Cookie.MUID) && (read() || muid); // another tab may have written its own
  }
  return muid;
}

// setVisitor writes the cookie: with that muid, or with a new one.
export const setVisitor = (value?: string) => write(Cookie.MUID, (muid = value || uuid()), Life.SECONDS);

// renewable reports whether the tag host at this address can set the cookie: both are of the same site.
export const renewable = (base: string) => ('.' + new URL(base).hostname).endsWith('.' + root());

// erase deletes the cookies, and makes the next visitor a new one. With only, it leaves those of another muid alone.
export function erase(only?: string) {
  if (only == undefined || !read() || read() == only) {
    [Cookie.MUID, Cookie.VISIT].forEach((name) => {
      if (cookie(name)) write(name, '', 0), write(name, '', 0, '');
    });
  }
  muid = '';
}

// read returns the muid of the cookie, '' without one that the tag host accepts. Many visitors would share an "undefined".
// Of several it is the last: browsers list cookies of a longer path first.
const read = () =>
  values(Cookie.MUID).filter((value) => /^(?!undefined$|null$)[!#-+\--[\]-~]{1,256}$/.test(value)).pop() || '';

// cookie returns the value of a cookie, '' without it.
export const cookie = (name: string) => values(name)[0] || '';

// values returns the values of all cookies with that name.
const values = (name: string) =>
  ('; ' + jar.cookie).split(`; ${name}=`).slice(1).map((rest) => rest.split(';')[0]);

export function write(name: string, value: string, seconds: number, on = root()) {
  jar.cookie = `${name}=${value};path=/;max-age=${seconds};samesite=lax` + (on && ';domain=' + on) +
    (location.protocol == 'https:' ? ';secure' : '');
}

// root returns the root domain of the page. Browsers refuse cookies on a public suffix, so the root domain is the
// shortest one on which a probe cookie is kept. A single label is one only when it is the host itself, such as localhost:
// every other one is a public suffix. The root domain is '' where cookies are denied.
export function root() {
  const labels = location.hostname.split('.');
  const value = Math.random() + ''; // another tab's probe has another value
  for (let n = labels.length - 1 || 1; domain == undefined && n--; ) {
    const candidate = labels.slice(n).join('.');
    write(Cookie.PROBE, value, 9, candidate);
    if (values(Cookie.PROBE).includes(value)) write(Cookie.PROBE, '', 0, (domain = candidate));
  }
  return domain || '';
}

// uuid makes a random UUID: each 0 becomes a random digit, the 8 one of 8 to b. crypto.randomUUID is faster, but needs TLS.
export const uuid = () => crypto.randomUUID ? crypto.randomUUID() :
  '00000000-0000-4000-8000-000000000000'.replace(/[08]/g, (digit: any) =>
    (digit ^ (crypto.getRandomValues(new Uint8Array(1))[0] & (15 >> (digit / 4)))).toString(16));
