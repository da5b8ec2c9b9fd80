// A page small enough to run the loader in: each test is one sentence, and throws when it is not true.
'use strict';
const fs = require('fs');
const vm = require('vm');
const assert = require('assert');

// page loads the loader on https://www.shop.co.uk after the calls that were queued before. Answers are the
// statuses of the requests in their order, 0 for a network error, 201 when none are left.
async function page(queued, { cookie = {}, answers = [] } = {}) {
  const jar = Object.assign({}, cookie);
  const p = { sent: [], timers: [], warnings: [], jar: jar, writes: 0 };
  const window = { mtrem: queued };
  const sandbox = {
    window, URL, Intl, Promise,
    console: { warn: (...words) => p.warnings.push(words.join(' ')) },
    location: { href: 'https://www.shop.co.uk/p?q=1', hostname: 'www.shop.co.uk', protocol: 'https:' },
    navigator: { language: 'en-GB' },
    screen: { width: 800, height: 600 },
    crypto: require('crypto').webcrypto,
    setTimeout: (f, ms, ...args) => p.timers.push({ run: () => f(...args), ms }),
    document: {
      title: 'Shop', referrer: 'https://search.test/',
      get cookie() { return Object.entries(jar).map(([k, v]) => k + '=' + v).join('; '); },
      set cookie(line) {
        p.writes++;
        const [, name, value] = line.match(/^([^=]+)=([^;]*)/);
        if (/domain=co\.uk(;|$)/.test(line)) return; // a public suffix
        if (/max-age=0(;|$)/.test(line)) delete jar[name];
        else { jar[name] = value; p.line = line; }
      },
    },
    fetch: (url, options) => {
      p.sent.push({ url, options, body: JSON.parse(options.body) });
      const status = answers.length ? answers.shift() : 201;
      return status ? Promise.resolve({ status }) : Promise.reject(new TypeError('network'));
    },
  };
  vm.runInNewContext(fs.readFileSync(process.argv[2], 'utf8'), sandbox);
  p.mtag = (...args) => window.mtrem.push(args);
  p.settle = () => new Promise((done) => setImmediate(done));
  await p.settle();
  return p;
}

const init = (consent) => ['init', 'https://mtag-ab12.shop.co.uk?tagId=ss_X', { consent }];
const names = (p) => p.sent.map((r) => r.body.event).join(' ');
const asArguments = (...args) => (function () { return arguments; })(...args);

const tests = {
  async 'calls queued as arguments and as arrays run in order'() {
    const p = await page([asArguments(...init(true)), ['event', 'First'], asArguments('event', { type: 'Second', value: 2 })]);
    p.mtag('event', 'Third', { value: 3 });
    assert.equal(names(p), 'PageView First Second Third');
    assert.equal(p.sent[2].body.value, 2);
  },
  async 'an event says where it happened and goes to the tag as text'() {
    const p = await page([init(true)]);
    const { url, options, body } = p.sent[0];
    assert.equal(url, 'https://mtag-ab12.shop.co.uk/mark/ss_X');
    assert.deepEqual([options.method, options.credentials, options.keepalive, options.headers], ['POST', 'include', true, undefined]);
    assert.match(body.event_id, /^[0-9a-f-]{36}$/);
    assert.match(body.event_time, /^\d{4}-.*Z$/);
    assert.deepEqual([body.pageUrl, body.pageTitle, body.referrer, body.language, body.screen], ['https://www.shop.co.uk/p?q=1', 'Shop', 'https://search.test/', 'en-GB', '800x600']);
    assert.ok(body.timezone);
  },
  async 'the muid is kept in a cookie on the root domain'() {
    const p = await page([init(true)]);
    assert.equal(p.jar._muid, p.sent[0].body.muid);
    assert.match(p.jar._muid, /^[0-9a-f]{8}-[0-9a-f]{4}-4/);
    assert.equal(p.line, '_muid=' + p.jar._muid + '; path=/; max-age=34560000; samesite=lax; domain=shop.co.uk; secure');
    assert.deepEqual(Object.keys(p.jar), ['_muid']);
  },
  async 'a muid that is there is used and renewed'() {
    const p = await page([init(true)], { cookie: { _muid: 'old' } });
    assert.equal(p.sent[0].body.muid, 'old');
    assert.match(p.line, /^_muid=old; .*domain=shop.co.uk/);
  },
  async 'without consent nothing is stored or sent until it is given'() {
    const p = await page([['event', 'Early'], init(false), ['consent', false]]);
    assert.deepEqual([p.sent.length, p.writes], [0, 0]);
    p.mtag('consent', true);
    assert.equal(names(p), 'Early PageView');
  },
  async 'waiting events are bounded, the newest are kept'() {
    const p = await page([init(false)]);
    for (let i = 0; i < 150; i++) p.mtag('event', 'E' + i);
    p.mtag('consent', true);
    assert.deepEqual([p.sent.length, p.sent[99].body.event], [100, 'E149']);
  },
  async 'consent taken back forgets the muid'() {
    const p = await page([init(true)]);
    p.mtag('consent', false);
    p.mtag('event', 'Later');
    assert.deepEqual([p.sent.length, Object.keys(p.jar).length], [1, 0]);
  },
  async 'identify links the muid'() {
    const p = await page([init(true)]);
    p.mtag('identify', { email: 'a@b.c' });
    assert.equal(p.sent[1].url, 'https://mtag-ab12.shop.co.uk/id/ss_X');
    assert.deepEqual(p.sent[1].body, { muid: p.jar._muid, email: 'a@b.c' });
  },
  async 'set adds to later events, and an event may say otherwise'() {
    const p = await page([init(true), ['set', { plan: 'a', x: 1 }], ['event', 'One', { plan: 'b' }]]);
    assert.deepEqual([p.sent[0].body.plan, p.sent[1].body.plan, p.sent[1].body.x], [undefined, 'b', 1]);
  },
  async 'network errors, 429 and 5xx are tried again with the same event_id, later each time'() {
    const p = await page([init(true)], { answers: [0, 429, 503] });
    const waits = [];
    while (p.timers.length) {
      const t = p.timers.shift();
      waits.push(t.ms);
      t.run();
      await p.settle();
    }
    assert.equal(p.sent.length, 4);
    assert.equal(new Set(p.sent.map((r) => r.body.event_id)).size, 1);
    assert.ok(waits[0] >= 500 && waits[0] <= waits[1] && waits[1] <= waits[2]);
  },
  async 'another 4xx is not tried again'() {
    const p = await page([init(true)], { answers: [400] });
    assert.equal(p.timers.length, 0);
  },
  async 'retries end'() {
    const p = await page([init(true)], { answers: Array(20).fill(503) });
    while (p.timers.length) { p.timers.shift().run(); await p.settle(); }
    assert.equal(p.sent.length, 6);
  },
  async 'a second init and unknown commands only warn'() {
    const p = await page([init(true), init(true), ['nonsense'], ['init', '::']]);
    assert.deepEqual([p.sent.length, p.warnings.length], [1, 3]);
  },
};

(async () => {
  let failed = 0;
  for (const [name, test] of Object.entries(tests)) {
    try {
      await test();
    } catch (error) {
      failed++;
      console.log(name + ': ' + error.message);
    }
  }
  process.exit(failed ? 1 : 0);
})();
