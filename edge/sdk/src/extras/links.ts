import { absolute, attribute, capture } from './extra';

// watchLinks calls clicked for each click on a link to a web address, with the mouse, its middle button or the keyboard.
// It does so too when the page prevents the navigation: many pages then open the address themselves.
export function watchLinks(clicked: (to: URL, link: Element) => void) {
  const listener = (event: MouseEvent) => {
    if (event.button > 1) return; // 2 opens the context menu
    // The path also has the links inside open shadow roots.
    const link = (event.composedPath() as any[]).find((node) => /^(a|area)$/.test(node.localName) && node.href);
    // The href of an SVG link is an object.
    const to = link && absolute(link.href.baseVal || link.href);
    if (to && /^http/.test(to.protocol)) clicked(to, link);
  };
  capture(document, 'click', listener);
  capture(document, 'auxclick', listener);
}

// linkFields are GA4's fields of a link.
export const linkFields = (to: URL, link: Element) => ({
  link_url: to.href,
  link_domain: to.hostname,
  link_id: attribute(link, 'id'),
  link_classes: attribute(link, 'class'),
});
