// Every key of the tag in localStorage begins with PREFIX.
export const PREFIX = '_mtag.';

// stored calls use with localStorage and returns its result. It returns undefined when use throws, as when localStorage
// is denied or full.
export function stored<T>(use: (storage: Storage) => T): T | undefined {
  try {
    return use(localStorage);
  } catch {}
}
