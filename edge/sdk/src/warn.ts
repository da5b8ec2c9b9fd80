// warn writes what went wrong to the console, for the developers of the site.
export const warn = (...words: unknown[]) => console.warn('mtag:', ...words);
