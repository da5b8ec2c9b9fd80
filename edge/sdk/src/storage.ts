import { kit } from './kit';

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
export const store = (key: string, text: string) => {
  try {
    storage[key] = text;
  } catch {}
};

// announce makes the other tabs of the host repeat a call.
export const announce = (...call: unknown[]) => {
  store(Key.PREFIX, json(call));
  delete storage[Key.PREFIX];
};

// json renders a value. It throws what JSON.stringify throws.
export const json = (value: unknown) => JSON.stringify(value, kit.replacer_);
