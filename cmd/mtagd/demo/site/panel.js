// The panel: it polls the partner's events listing and shows the answer, and what the visitor's latest event says about
// the visitor.
'use strict';

{
  const list = document.querySelector('[data-events]');
  const handle = document.querySelector('[data-handle]');
  const known = new Set();
  let first = true;

  const kinds = { Purchase: 'sold', Refund: 'back', RemoveFromCart: 'back' };
  const kindOf = (event) => kinds[event.event_name] || ('value' in event.raw_data ? 'money' : '');

  function about({ event_name, raw_data }) {
    if (event_name === 'Search') return `“${raw_data.search_term}”`;
    const parts = [];
    if ('value' in raw_data) parts.push(`${raw_data.currency || ''} ${Number(raw_data.value).toFixed(2)}`);
    // A backend may send products of any form, and no page URL.
    if (Array.isArray(raw_data.products)) parts.push(raw_data.products.map((p) => `${p?.quantity ?? 1} × ${p?.name ?? p?.id}`).join(', '));
    if (parts.length) return parts.join(' · ');
    return URL.canParse(raw_data.pageUrl) ? new URL(raw_data.pageUrl).pathname : 'from a backend';
  }

  function element(name, properties, ...children) {
    const made = Object.assign(document.createElement(name), properties);
    made.append(...children);
    return made;
  }

  // origin lists the consent, session and last touch of an event, and more: its first touch.
  function origin({ raw_data }, more) {
    const text = (names) => Object.keys(raw_data).filter((name) => names.test(name)).map((name) => `${name}=${raw_data[name]}`).join('\n');
    const rows = {
      Consent: Object.entries(raw_data.consent || {}).map((category) => category.join(' ')).join('\n'),
      Session: Number(raw_data.session_id) ? `since ${new Date(Number(raw_data.session_id)).toLocaleTimeString('en-GB')}` : '',
      'Last touch': text(/^(?!first_)(utm_.*|.*clk?id|.braid|fb[cp])$/),
      'First touch': more ? text(/^first_/) : '',
    };
    const shown = Object.entries(rows).filter(([, value]) => value);
    return element('dl', {}, ...shown.flatMap(([name, value]) => [element('dt', { textContent: name }), element('dd', { textContent: value })]));
  }

  function item(event) {
    const time = new Date(event.event_time);
    const summary = element('summary', {},
      element('i'),
      element('strong', { textContent: event.event_name }),
      element('time', { dateTime: event.event_time, textContent: time.toLocaleTimeString('en-GB') }),
      element('em', { textContent: about(event) }));
    const details = element('details', { className: kindOf(event) }, summary);
    details.addEventListener('toggle', () => {
      if (!details.querySelector('pre')) details.append(origin(event, true), element('pre', { textContent: JSON.stringify(event, null, 2) }));
    });
    return element('li', { className: first ? '' : 'new' }, details);
  }

  function each(selector, change) {
    document.querySelectorAll(selector).forEach(change);
  }

  function showLatest(event) {
    handle.querySelector('[data-latest]').textContent = event.event_name;
    handle.querySelector('[data-latest-about]').textContent = about(event);
    if (first) return;
    handle.classList.remove('new');
    requestAnimationFrame(() => handle.classList.add('new'));
  }

  // The visitor's muid. The tag calls back when there is consent.
  let muid;
  let recent = []; // the events of the listing
  const askMUID = () => mtag('muid', (answer) => {
    muid = answer;
    showVisitor();
  });
  askMUID();

  function showVisitor() {
    const agreed = localStorage.getItem('consent') === 'yes';
    const latest = recent.find((event) => event.muid === muid);
    document.querySelector('[data-visitor]').replaceChildren(
      !agreed ? 'Without consent the tag stores and sends nothing.'
        : latest ? origin(latest) : 'No event of this visitor is recorded yet.');
  }
  showVisitor();
  const chosen = () => {
    askMUID();
    showVisitor();
  };
  each('[data-choose]', (button) => button.addEventListener('click', chosen));
  addEventListener('storage', ({ key }) => {
    if (key === 'consent') chosen();
  });

  async function refresh() {
    try {
      const response = await fetch('/demo/events');
      if (!response.ok) throw response.status;
      const { events, pagination } = await response.json();
      each('[data-live]', (dot) => dot.classList.add('on'));
      each('[data-total]', (total) => { total.textContent = pagination.totalItems; });
      const fresh = events.filter((event) => !known.has(event.id));
      fresh.forEach((event) => known.add(event.id));
      if (fresh.length) {
        list.querySelector('.empty')?.remove();
        showLatest(events[0]);
        recent = events;
        showVisitor();
      }
      list.prepend(...fresh.map(item));
      first = false;
    } catch {
      each('[data-live]', (dot) => dot.classList.remove('on'));
    }
    setTimeout(refresh, document.hidden ? 5000 : 1000);
  }
  refresh();

  // On a small screen the handle opens and closes the panel. Escape closes it, too.
  const open = (yes) => handle.setAttribute('aria-expanded', yes);
  handle.addEventListener('click', () => open(handle.getAttribute('aria-expanded') !== 'true'));
  document.querySelector('[data-panel]').addEventListener('keydown', (press) => {
    if (press.key !== 'Escape' || handle.getAttribute('aria-expanded') !== 'true') return;
    open(false);
    handle.focus();
  });
}
