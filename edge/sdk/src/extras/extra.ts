// What the extras share. Most extras only make calls, as the page itself does: so the base script decides about consent.
// Some are parts of the tag itself. They stand before the base script in the file, because its first call needs them.

import type { kit } from '../kit';

export type Kit = typeof kit;
export type Commands = Record<string, (...args: any[]) => void>;

const calls: any = (window.mtrem = window.mtrem || []);

// start runs an extra once per page, also when the page loads the script twice.
export function start(name: string, run: () => void) {
  if (calls[name]) return;
  calls[name] = true;
  run();
}

// part installs a part of the tag, once per page, before any other call.
export function part(name: string, install: (commands: Commands, kit: Kit) => void) {
  start(name, () => calls[calls.running ? 'push' : 'unshift'](['part', name, install]));
}

// send is mtag('event', …). It also works on pages that have mtrem but no mtag function.
export const send = (event: string, fields: object) => calls.push(['event', event, fields]);

// whenPushed reads what is in an array, and from now on whatever the page pushes. It works beside Google's tag, which puts its
// own push in front of this one, or has done so before.
export function whenPushed(layer: any[], read: (entry: any) => void) {
  const { push } = layer;
  // Not an assignment, which a page with a frozen Array.prototype forbids.
  Object.defineProperty(layer, 'push', {
    configurable: true,
    writable: true,
    value(...entries: unknown[]) {
      entries.forEach(read);
      return push.apply(this, entries);
    },
  });
  layer.forEach(read);
}

// capture listens before the page does, so that the page cannot stop the event. Errors go to the console.
export function capture<Type extends keyof DocumentEventMap>(
  target: Document | Element, type: Type, listener: (event: DocumentEventMap[Type]) => void,
) {
  target.addEventListener(type, (event) => {
    try {
      listener(event as DocumentEventMap[Type]);
    } catch (error) {
      console.warn('mtag:', error);
    }
  }, true);
}

// text returns the text that an element shows, shortened.
export const text = (element: Element) => element.textContent!.trim().replace(/\s+/g, ' ').slice(0, 100) || undefined;

// attribute reads the markup: element.id and form.name may be another element, for example a field named "id".
export const attribute = (element: Element, name: string) => element.getAttribute(name) || undefined;

// absolute returns a URL of the page's markup, or undefined when it is not valid.
export function absolute(url: string) {
  try {
    return new URL(url, document.baseURI);
  } catch {}
}
