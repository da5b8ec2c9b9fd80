// Every key of the tag in localStorage begins with PREFIX.
export const PREFIX = '_mtag.';

// stored calls use with localStorage and returns its result. It returns undefined when use throws, as when localStorage
// is denied or full.
export function stored<T>(use: (storage: Storage) => T): T | undefined {
  try {
    return use(localStorage);
  } catch {}
}

// json renders a value. Old versions of Prototype.js add a toJSON to arrays, which would render them as strings; json
// takes it away for the moment. It throws what JSON.stringify throws.
export function json(value: unknown, replacer?: (key: string, value: unknown) => unknown) {
  const arrays = Array.prototype as { toJSON?: unknown };
  const { toJSON } = arrays;
  delete arrays.toJSON;
  try {
    return JSON.stringify(value, replacer);
  } finally {
    if (toJSON) arrays.toJSON = toJSON;
  }
}
