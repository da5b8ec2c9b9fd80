import type { Mtag } from './mtag.js';

export * from './mtag.js';

/** Calls the tag, which is part of this module. On a server it does nothing. */
export const mtag: Mtag;
