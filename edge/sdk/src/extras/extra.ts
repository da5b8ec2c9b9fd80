// What the extras share. An extra only makes calls, as the page itself does. So the base script decides about consent.

// start runs an extra once per page, also when the page loads the script twice.
export function start(name: string, run: () => void) {
  const calls = window.mtrem as any;
  if (calls[name]) return;
  calls[name] = true;
  run();
}

// send is mtag('event', …). It also works on pages that have mtrem but no mtag function.
export const send = (event: string, fields: object) => window.mtrem!.push(['event', event, fields]);

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
