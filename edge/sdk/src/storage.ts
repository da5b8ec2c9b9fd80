// PREFIX begins the name of everything that the tag keeps in localStorage.
export const PREFIX = '_mtag.';

// stored uses localStorage where there is one: it may be denied, and it may be full.
export function stored<T>(use: (storage: Storage) => T): T | undefined {
  try {
    return use(localStorage);
  } catch {}
}
