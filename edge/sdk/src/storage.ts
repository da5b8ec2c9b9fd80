// Every key of the tag in localStorage begins with PREFIX.
export const enum Key {
  PREFIX = '_mtag.',
  RENEWED = '_mtag.renewed', // when a request last asked the tag host to renew the cookie, in ms
}

// storage is localStorage, or an object of this page alone where localStorage is denied.
export let storage: Record<string, string> = {};
try {
  storage = localStorage || storage;
} catch {}

// store sets a key. It does nothing when localStorage is full.
export function store(key: string, text: string) {
  try {
    storage[key] = text;
  } catch {}
}

// announce tells the other tabs of the host.
export function announce(what: unknown) {
  store(Key.PREFIX, json(what));
  delete storage[Key.PREFIX];
}

// Hidden is what json leaves out: fields by their names, and parts of texts.
export type Hidden = [names: RegExp, texts: RegExp];

// json renders a value, without what is hidden. Old versions of Prototype.js add a toJSON to arrays, which would render
// them as strings: this[name] is the array before that. Other pages are spared the function, because it takes long. json
// throws what JSON.stringify throws. In a URL, what is left of the query begins with a question mark again.
export const json = (value: unknown, hidden?: Hidden) =>
  JSON.stringify(value, hidden || ([] as any).toJSON ? function (this: any, name, text) {
    if (hidden && hidden[0].test(name)) return;
    if (Array.isArray(this[name])) return this[name];
    if (!hidden || name == 'event_id') return text;
    const rest = typeof text == 'string' ? text.replace(hidden[1], '') : text;
    return rest == text ? text : rest.replace(/^(\w+:[^?#&]*)&/, '$1?');
  } : undefined);
