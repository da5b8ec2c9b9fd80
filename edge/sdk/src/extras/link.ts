// link carries the visitor to other sites of the same merchant, over clicks and forms, with consent on both sides. The
// parameter _mtag has the muid, the time, and a checksum of both and of the browser: a link that is passed on to
// somebody else, or used later, carries nobody.

import { absolute, capture, part } from './extra';
import { watchLinks } from './links';

const enum Max {
  AGE = 12e4, // ms, two minutes
  SECONDS = 400 * 24 * 60 * 60, // of the cookie
}

const NAME = '_mtag';

// checksum returns 64 bits of a text and of what two sites see of a browser. It is FNV-1a, forwards and backwards.
function checksum(text: string) {
  const all = [text, navigator.userAgent, navigator.language, screen.width, screen.height].join();
  const hash = (codes: string) => {
    let h = 0x811c9dc5;
    for (let i = 0; i < codes.length; i++) h = Math.imul(h ^ codes.charCodeAt(i), 0x1000193);
    return (h >>> 0).toString(36);
  };
  return hash(all) + '-' + hash(all.split('').reverse().join(''));
}

const sign = (muid: string) => {
  const text = encodeURIComponent(muid) + '~' + Date.now().toString(36);
  return text + '~' + checksum(text);
};

// verify returns the muid of a token; '' when it is not valid any more.
function verify(token: string) {
  const [muid, time, sum] = token.split('~');
  const age = Date.now() - parseInt(time, 36);
  return sum == checksum(muid + '~' + time) && age < Max.AGE && age > -Max.AGE ? decodeURIComponent(muid) : '';
}

// append adds the parameter to a URL, and remove takes it away. They leave all else as it is: new URL() would encode other
// parameters anew, and a signature of them would fail.
const append = (url: string, token: string) =>
  url.replace(/^[^#]*/, (start) => start + (start.includes('?') ? '&' : '?') + NAME + '=' + encodeURIComponent(token));
const remove = (url: string) => url.replace(/([?&])_mtag=[^&#]*(&?)/, (_, before, more) => more && before);

part('link', (commands, kit) => {
  let domains: string[] = [];

  // Whoever arrives is the visitor of the other site, once there is consent. The parameter leaves the address at once.
  let arrived = '';
  const token = new URLSearchParams(location.search).get(NAME);
  if (token) {
    arrived = verify(token);
    history.replaceState(history.state, '', remove(location.href));
  }
  const { decided_ } = kit;
  kit.decided_ = (granted: boolean, ...rest: unknown[]) => {
    if (granted && arrived) kit.write_('_muid', arrived, Max.SECONDS);
    if (granted) arrived = '';
    decided_(granted, ...rest);
  };

  // carried returns the address with the visitor, or undefined when it is none of the domains or there is no consent. Without
  // consent it takes away what an earlier click has added.
  const carried = (to: URL) => {
    const within = (host: string) => domains.some((domain) => ('.' + host).endsWith('.' + domain));
    if (!within(to.hostname) || ('.' + to.hostname).endsWith('.' + kit.root_())) return;
    const muid = kit.allowed_ && kit.cookie_('_muid');
    const plain = to.searchParams.has(NAME) ? remove(to.href) : to.href;
    if (muid) return append(plain, sign(muid));
    if (plain != to.href) return plain;
  };

  commands.link = (list: string[]) => {
    if (!domains[0]) {
      watchLinks((to, link: any) => {
        const href = carried(to);
        if (href) link.setAttribute('href', href);
      });
      capture(document, 'submit', (event) => {
        const form = event.target as HTMLFormElement;
        const button = (event as any).submitter as Element | null;
        const from = button && button.hasAttribute('formaction') ? button : form;
        const name = from == form ? 'action' : 'formaction';
        const to = absolute(from.getAttribute(name) || location.href);
        const href = to && carried(to);
        const old = form.querySelector(`input[name=${NAME}]`);
        if (old) old.remove();
        if (!href) return;
        const value = new URL(href).searchParams.get(NAME);
        // form.method may be a field of that name.
        const method = (button && button.getAttribute('formmethod')) || form.getAttribute('method') || '';
        if (/^post$/i.test(method) || !value) return from.setAttribute(name, href);
        // The fields of a form replace the query of its address.
        form.append(Object.assign(document.createElement('input'), { type: 'hidden', name: NAME, value }));
      });
    }
    domains = list;
  };
});
