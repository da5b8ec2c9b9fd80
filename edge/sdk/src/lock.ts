// The lock: only one tab of a site sends at a time. Otherwise two tabs would send the same stored events.

import { PREFIX, stored } from './storage';

const LEASE = PREFIX + 'lease';
const TERM = 5e3; // ms; after a tab was killed, the others wait at most this long
const DOUBT = 50; // ms; a tab sees with a delay what another has stored

// release gives up the lock, when this tab holds it.
export let release = () => {};

// exclusively does the work when this tab gets the lock, and returns whether it did. It does no harm when two tabs hold
// the lock for a moment: the tag host records an event once.
export async function exclusively(work: () => Promise<void>) {
  let done: Promise<void> | undefined;
  const turn = () => Promise.race([(done = work()), new Promise<void>((resolve) => (release = resolve))]);
  try {
    await navigator.locks.request(PREFIX, { ifAvailable: true }, (lock) => lock && turn());
  } catch {
    // Pages without TLS have no Web Locks. Pages that may not store anything have none either. Use a lease in
    // localStorage.
    const lease = () => stored((s) => s.getItem(LEASE));
    const end = () => stored((s) => s.removeItem(LEASE));
    const now = Date.now();
    const left = +lease()! - now;
    if (left > 0 && left < TERM + 1) return false;
    const mine = now + TERM + Math.random() + '';
    stored((s) => s.setItem(LEASE, mine));
    if (lease() == mine) {
      release = end;
      await new Promise((resolve) => setTimeout(resolve, DOUBT));
      if (lease() != mine) return false;
    }
    await turn();
    end();
  }
  await done;
  return !!done;
}
