// outbound sends Click for each click on a link to another site.

import { send, start } from './extra';
import { linkFields, watchLinks } from './links';

start('outbound', () => watchLinks((to, link) => {
  const here = site(location.hostname);
  const there = site(to.hostname);
  if (here.endsWith(there) || there.endsWith(here)) return;
  send('Click', Object.assign(linkFields(to, link), { outbound: true }));
}));

// site returns a host with a dot before it and without www. Two hosts count as one site when one ends with the other:
// www.shop.example, shop.example and pay.shop.example.
function site(host: string) {
  return '.' + host.replace(/^www\./, '');
}
