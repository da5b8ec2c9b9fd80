// scroll sends Scroll once for each page view, when the visitor has scrolled to where 90 % of the page's height was
// visible.

import { send, start } from './extra';

start('scroll', () => {
  let sentFor = ''; // the URL of the page view
  let timer = 0;

  addEventListener('scroll', () => {
    const url = location.href;
    if (sentFor == url || timer) return;
    // Not at once: measuring costs a layout, and a single-page application may still be showing the previous page.
    timer = setTimeout(() => {
      timer = 0;
      const { scrollHeight } = document.scrollingElement || document.documentElement;
      if (url != location.href || scrollY + innerHeight < scrollHeight * 0.9) return;
      sentFor = url;
      send('Scroll', { percent_scrolled: 90 });
    }, 200);
  }, { passive: true });

  // A return from the back/forward cache is another page view.
  addEventListener('pageshow', (event) => event.persisted && (sentFor = ''));
});
