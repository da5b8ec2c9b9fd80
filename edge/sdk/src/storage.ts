// Every key of the tag in localStorage begins with PREFIX.
export const enum Key {
  PREFIX = '_mtag.',
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

// json renders a value without the fields whose names match hidden. Old versions of Prototype.js add a toJSON to arrays,
// which would render them as strings: this[name] is the array before that. Other pages are spared the function, because it
// takes long. json throws what JSON.stringify throws.
export const json = (value: unknown, hidden?: RegExp) =>
  JSON.stringify(value, hidden || ([] as any).toJSON ? function (this: any, name, rendered) {
    return hidden && hidden.test(name) ? undefined : Array.isArray(this[name]) ? this[name] : rendered;
  } : undefined);
