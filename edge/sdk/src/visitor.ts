// The visitor: the muid and its cookie. The cookie is on the root domain, so all hosts of a site share it.

const COOKIE = '_muid';
const PROBE = '_mtag'; // a cookie that root sets and deletes
const SECONDS = 400 * 24 * 60 * 60; // 400 days, the longest that browsers keep a cookie
const MUID = /^(?!(undefined|null)$)[!-~]{1,256}$/; // what the tag host accepts; many visitors would share an "undefined"

let muid = '';
let kept = false; // the cookie could be set
let domain: string | undefined; // the root domain; undefined before the first look

// visitor returns the muid of the cookie, or a new one. Once per page it writes the cookie, to set or renew it, but leaves
// it alone when the tag host of the page can renew it: some browsers keep a cookie for only a week once a script has
// written it. Where cookies are denied, each page load gets a new muid. It returns '' when another page of the site has
// deleted the cookie: then consent was withdrawn there.
export function visitor(base: string) {
  if (!muid) {
    const found = read();
    write(COOKIE, '', 0, ''); // a cookie of this host alone would hide the visitor's own on other hosts
    muid = read();
    if (!muid || !renewable(base)) write(COOKIE, (muid = muid || found || uuid()), SECONDS);
    kept = !!values(COOKIE)[0];
  }
  if (kept) muid = values(COOKIE)[0] && (read() || muid); // another tab may have written its own
  return muid;
}

// renewable reports whether the tag host at this address can set the cookie: both are of the same site.
export const renewable = (base: string) => ('.' + new URL(base).hostname).endsWith('.' + root());

// erase deletes the cookie, and makes the next visitor a new one. With only, it deletes only a cookie of that muid.
export function erase(only?: string) {
  if (values(COOKIE)[0] && (only == undefined || read() == only)) {
    write(COOKIE, '', 0);
    write(COOKIE, '', 0, '');
  }
  muid = '';
}

// read returns the muid of the cookie, '' without a valid one. Of several it is the last: browsers list cookies of a
// longer path first.
const read = () => values(COOKIE).filter((value) => MUID.test(value)).pop() || '';

// cookie returns the value of a cookie, '' without it.
export const cookie = (name: string) => values(name)[0] || '';

// values returns the values of all cookies with that name.
function values(name: string) {
  try {
    return ('; ' + document.cookie).split(`; ${name}=`).slice(1).map((rest) => rest.split(';')[0]);
  } catch {
    return []; // the page is in a sandbox without cookies
  }
}

export function write(name: string, value: string, seconds: number, on = root()) {
  try {
    document.cookie = `${name}=${value};path=/;max-age=${seconds};samesite=lax` + (on && ';domain=' + on) +
      (location.protocol == 'https:' ? ';secure' : '');
  } catch {}
}

// root returns the root domain of the page. Browsers refuse cookies on a public suffix, so the root domain is the
// shortest one on which a probe cookie is kept. It is the host itself when that has no domain above it, such as localhost,
// and '' where cookies are denied.
function root() {
  const labels = location.hostname.split('.');
  const value = Math.random() + ''; // another tab's probe has another value
  for (let n = labels.length; domain == undefined && n--; ) {
    const candidate = labels.slice(n).join('.');
    write(PROBE, value, 9, candidate);
    if (values(PROBE).includes(value)) write(PROBE, '', 0, (domain = candidate));
  }
  return domain || '';
}

// uuid avoids Array.from, which old versions of Prototype.js and MooTools replace.
export function uuid() {
  const random = crypto.getRandomValues(new Uint8Array(32));
  let n = 0;
  return 'xxxxxxxx-xxxx-4xxx-yxxx-xxxxxxxxxxxx'.replace(/[xy]/g, (digit) =>
    (digit == 'x' ? random[n++] & 15 : (random[n++] & 3) | 8).toString(16));
}
