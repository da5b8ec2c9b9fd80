// The visitor: the muid and its cookie. The cookie is on the root domain, so all hosts of a site share it.

const COOKIE = '_muid';
const PROBE = '_mtag'; // a cookie that root sets and deletes
const SECONDS = 400 * 24 * 60 * 60; // 400 days, the longest that browsers keep a cookie

let muid = '';

// visitor returns the muid of the cookie, or a new one. Once per page it writes the cookie, to set or renew it. Where
// cookies are denied, each page load gets a new muid.
export function visitor() {
  if (!muid) {
    muid = read(COOKIE) || uuid();
    write(COOKIE, muid, SECONDS);
    muid = read(COOKIE) || muid; // another tab may have written its own meanwhile
  }
  return muid;
}

// erase deletes the muid and its cookie.
export function erase() {
  muid = '';
  if (read(COOKIE)) write(COOKIE, '', 0);
}

export function read(name: string) {
  try {
    return ('; ' + document.cookie).split('; ' + name + '=')[1].split(';')[0];
  } catch {
    return ''; // there is no such cookie, or the page is in a sandbox without cookies
  }
}

export function write(name: string, value: string, seconds: number, domain = root()) {
  try {
    document.cookie = `${name}=${value};path=/;max-age=${seconds};samesite=lax` + (domain && ';domain=' + domain) +
      (location.protocol == 'https:' ? ';secure' : '');
  } catch {}
}

// root returns the root domain of the page. Browsers refuse cookies on a public suffix, so the root domain is the
// shortest one on which a probe cookie is kept. It is '' for a host without one, such as localhost.
function root() {
  const labels = location.hostname.split('.');
  const value = Math.random() + ''; // another tab's probe has another value
  for (let n = labels.length - 2; n >= 0; n--) {
    const domain = labels.slice(n).join('.');
    write(PROBE, value, 9, domain);
    if (read(PROBE) == value) {
      write(PROBE, '', 0, domain);
      return domain;
    }
  }
  return '';
}

export function uuid() {
  const hex = Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte, i) =>
    ((i == 6 ? (byte & 15) | 64 : i == 8 ? (byte & 63) | 128 : byte) + 256).toString(16).slice(1)).join('');
  return hex.replace(/^(.{8})(....)(....)(....)/, '$1-$2-$3-$4-');
}
