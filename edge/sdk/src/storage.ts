import { kit } from './kit';

// store sets a key. It does nothing when localStorage is full.
export const store = (key: string, text: string) => {
  try {
    storage()[key] = text;
  } catch {}
};

// Every key of the tag in localStorage begins with PREFIX.
export const enum Key {
  PREFIX = '_mtag.',
  SAID = '_mtag..', // followed by the name of a call: the last one, for other tabs to repeat
}

let opened: Record<string, string>;

// storage returns localStorage, or an object of this page alone where localStorage is denied. The first use takes longer than
// all else that the load of a page needs.
export const storage = () => {
  try {
    opened = opened || localStorage;
  } catch {}
  return (opened = opened || {});
};

// keys returns the keys that begin with a prefix.
export const keys = (prefix: string) => Object.keys(storage()).filter((name) => name.startsWith(prefix));

// said returns the last calls that tabs of the host have announced.
export const said = () => keys(Key.SAID).map((key) => storage()[key]);

// json renders a value. It throws what JSON.stringify throws.
export const json = (value: unknown) => JSON.stringify(value, kit.replacer_);
