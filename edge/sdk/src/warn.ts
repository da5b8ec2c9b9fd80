// warn tells the site's developers what went wrong; visitors see nothing.
export const warn = (...words: unknown[]) => console.warn('mtag:', ...words);
