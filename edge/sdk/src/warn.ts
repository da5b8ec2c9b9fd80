// warn writes what went wrong to the console, for the developers of the site.
export const warn = (...words: unknown[]) => console.warn('mtag:', ...words);

// trace writes what the tag does to the console, with the option debug.
export let trace: (...words: unknown[]) => void = () => {};
export const startTrace = () => (trace = console.log);

// tell calls a function of the page, if it is one, soon. Its errors go to the console.
export const tell = (callback: any, value?: unknown) => Promise.resolve(value).then(callback).catch(warn);

// safely does the work. It writes an error to the console, after what the work was about, and never throws it into the
// page.
export function safely(work: () => void, about?: unknown) {
  try {
    work();
  } catch (error) {
    warn(about, error);
  }
}
