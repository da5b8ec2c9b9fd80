// The lock: only one tab of a site sends at a time. Otherwise two tabs would send the same stored events.

import { Key } from './storage';

// release gives up the lock if this tab holds it.
export let release = () => {};

// exclusively does the work if this tab gets the lock, and returns whether it did. Pages without TLS and pages in a
// sandbox have no Web Locks: there each tab sends by itself. That costs requests, but the tag host records an event once.
export async function exclusively(work: () => Promise<void>) {
  let done: Promise<void> | undefined;
  const turn = (lock: unknown) => lock && Promise.race([(done = work()), new Promise<void>((resolve) => (release = resolve))]);
  try {
    await navigator.locks.request(Key.PREFIX, { ifAvailable: true }, turn);
  } catch {
    await turn(1);
  }
  await done;
  return !!done;
}
