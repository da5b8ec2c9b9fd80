// A worker of Cloudflare that makes a path of the site a proxy for the tag host: first-party.md explains it. Give it the route
// shop.example/t/*. fetch takes the Host from the URL.
const PATH = '/t';
const TAG_HOST = 'https://tags.example.com';

export default {
  async fetch(request) {
    const url = new URL(request.url);
    const headers = new Headers(request.headers);
    const muids = (headers.get('Cookie') || '').split(/;\s*/).filter((cookie) => cookie.startsWith('_muid='));
    headers.delete('Cookie');
    if (muids.length) headers.set('Cookie', muids.join('; '));
    headers.delete('Authorization');
    return fetch(TAG_HOST + url.pathname.slice(PATH.length) + url.search, {
      method: request.method,
      headers,
      body: request.body,
      redirect: 'manual',
    });
  },
};
