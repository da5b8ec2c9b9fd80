// The lock: of all tabs of a site, one sends at a time, so that two do not send the same stored events.

import { PREFIX, stored } from './storage';

const LEASE = PREFIX + 'lease';
const TERM = 5e3; // ms; a tab that was killed keeps the others waiting for no longer

// Ends the turn of this tab, when it has one.
export let release = () => {};

// exclusively does the work when it is this tab's turn, and reports whether it was. A turn that overlaps with
// another does no harm: the tag host records an event once.
export async function exclusively(work: () => Promise<void>) {
  let done: Promise<void> | undefined;
  const turn = () => Promise.race([(done = work()), new Promise<void>((resolve) => (release = resolve))]);
  try {
    await navigator.locks.request(PREFIX, { ifAvailable: true }, (lock) => lock && turn());
  } catch {
    // Pages without TLS have no locks, nor do those that may not store anything.
    const now = Date.now();
    const left = +stored((s) => s.getItem(LEASE))! - now;
    if (!(left > 0 && left <= TERM)) {
      stored((s) => s.setItem(LEASE, now + TERM + ''));
      await turn();
      stored((s) => s.removeItem(LEASE));
    }
  }
  await done;
  return !!done;
}
