// warn writes what went wrong to the console, for the developers of the site.
export const warn = (...words: unknown[]) => console.warn('mtag:', ...words);

// safely calls a function. It writes an error to the console, and never throws it into the page.
export const safely = (call: () => void) => {
  try {
    call();
  } catch (error) {
    warn(error);
  }
};

// tell calls a function of the page, if there is one, right after this task. Its errors go to the console.
export const tell = async (callback: any, value?: unknown) => {
  await 0;
  safely(() => callback && callback(value));
};

// now returns the ms since the page began. Unlike the clock of the device, it is never put right.
export const now = () => performance.now();

// soon calls after a time, if the page has left setTimeout as it was.
export const soon = (call: () => void, ms = 99) => safely(() => setTimeout(call, ms));
