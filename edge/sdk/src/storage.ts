// PREFIX begins every key of the tag in localStorage.
export const PREFIX = '_mtag.';

// stored uses localStorage. It returns undefined when localStorage is denied or full.
export function stored<T>(use: (storage: Storage) => T): T | undefined {
  try {
    return use(localStorage);
  } catch {}
}
