// The browser tag. It runs the calls that the init snippet queued in window.mtrem, and then each
// later one at once. Without consent it stores nothing and sends nothing: events wait in memory.
(function () {
  'use strict';

  const MAX_WAITING = 100; // requests; beyond it the oldest is given up
  const MAX_TRIES = 6;
  const MAX_KEEPALIVE = 60000; // characters; browsers refuse more than 64 KiB in flight
  const COOKIE = '_muid';
  const PROBE = '_mtag';
  const COOKIE_SECONDS = 400 * 24 * 60 * 60; // the longest that browsers keep a cookie

  const calls = (window.mtrem = window.mtrem || []);
  if (calls.running) return; // the loader is on the page twice
  calls.running = true;

  let tag = null; // { origin, id } once init has run
  let consent = false;
  let muid = ''; // read or made on the first request with consent
  let common = {}; // fields of mtag('set')
  let waiting = []; // requests without a tag or without consent

  const commands = {
    init(url, options) {
      if (tag) return console.warn('mtag: only one tag may be installed per page');
      const parsed = new URL(url, location.href);
      const id = parsed.searchParams.get('tagId');
      if (!id) return console.warn('mtag: the init URL has no tagId');
      tag = { origin: parsed.origin, id: id };
      consent = !!options && options.consent === true;
      commands.event('PageView');
      flush();
    },

    // mtag('event', 'Purchase', {...}) or mtag('event', { type: 'Purchase', ... })
    event(name, fields) {
      if (name && typeof name === 'object') {
        fields = name;
        name = fields.event || fields.type;
      }
      request('mark', Object.assign({
        event_id: uuid(),
        event_time: new Date().toISOString(),
        pageUrl: location.href,
        pageTitle: document.title,
        referrer: document.referrer,
        language: navigator.language,
        screen: screen.width + 'x' + screen.height,
        timezone: Intl.DateTimeFormat().resolvedOptions().timeZone
      }, common, fields, { event: name }));
    },

    // Links the visitor to an email, phone or deviceId, so that backend events find them.
    identify(identifiers) {
      request('id', Object.assign({}, identifiers));
    },

    consent(given) {
      consent = given === true;
      if (consent) return flush();
      muid = '';
      if (readCookie(COOKIE)) writeCookie(COOKIE, '', 0, rootDomain());
    },

    set(fields) {
      common = Object.assign({}, common, fields);
    }
  };

  function run(call) {
    const command = commands[call[0]];
    try {
      if (command) command(call[1], call[2]);
      else console.warn('mtag: unknown command', call[0]);
    } catch (error) {
      console.warn('mtag:', error); // never the page's problem
    }
  }

  function request(path, data) {
    send({ path: path, data: data, tries: 0 });
  }

  function flush() {
    const ready = waiting;
    waiting = [];
    ready.forEach(send);
  }

  function send(r) {
    if (!tag || !consent) {
      waiting.push(r);
      if (waiting.length > MAX_WAITING) waiting.shift();
      return;
    }
    muid = muid || visitor();
    const body = JSON.stringify(Object.assign({ muid: muid }, r.data));
    fetch(tag.origin + '/' + r.path + '/' + tag.id, {
      method: 'POST',
      body: body, // a string goes as text/plain, which needs no preflight
      credentials: 'include',
      keepalive: body.length < MAX_KEEPALIVE
    }).then(function (response) {
      if (response.status === 429 || response.status >= 500) retry(r);
    }, function () {
      retry(r);
    });
  }

  // The event_id makes a repeated event count once.
  function retry(r) {
    r.tries++;
    if (r.tries >= MAX_TRIES) return;
    setTimeout(send, Math.pow(2, r.tries) * (250 + 250 * Math.random()), r);
  }

  // The muid of the cookie, or a new one. The cookie is written either way, which renews it.
  function visitor() {
    const id = readCookie(COOKIE) || uuid();
    writeCookie(COOKIE, id, COOKIE_SECONDS, rootDomain());
    return id;
  }

  // Browsers refuse a cookie on a public suffix, so the first domain from the right that takes one is the
  // root domain. localhost and addresses have none.
  function rootDomain() {
    const labels = location.hostname.split('.');
    for (let n = 2; n <= labels.length; n++) {
      const domain = labels.slice(-n).join('.');
      writeCookie(PROBE, '1', 60, domain);
      if (readCookie(PROBE)) {
        writeCookie(PROBE, '', 0, domain);
        return domain;
      }
    }
    return '';
  }

  function readCookie(name) {
    const found = document.cookie.match('(?:^|; )' + name + '=([^;]+)');
    return found ? found[1] : '';
  }

  function writeCookie(name, value, seconds, domain) {
    document.cookie = name + '=' + value + '; path=/; max-age=' + seconds + '; samesite=lax' +
      (domain ? '; domain=' + domain : '') + (location.protocol === 'https:' ? '; secure' : '');
  }

  function uuid() {
    if (crypto.randomUUID) return crypto.randomUUID();
    const b = crypto.getRandomValues(new Uint8Array(16)); // pages without TLS
    b[6] = (b[6] & 15) | 64;
    b[8] = (b[8] & 63) | 128;
    return Array.from(b, function (x, i) {
      return ([4, 6, 8, 10].includes(i) ? '-' : '') + x.toString(16).padStart(2, '0');
    }).join('');
  }

  const queued = calls.splice(0);
  calls.push = function () {
    Array.from(arguments).forEach(run);
    return calls.length;
  };
  queued.forEach(run);
})();
