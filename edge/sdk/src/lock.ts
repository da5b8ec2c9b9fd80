// The lock: of all tabs of a site, one sends at a time, so that two do not send the same stored events.

import { PREFIX, stored } from './storage';

const LEASE = PREFIX + 'lease';
const TERM = 5e3; // ms; a tab that was killed keeps the others waiting for no longer
const DOUBT = 50; // ms; tabs see what others have stored with a delay

// release ends the turn of this tab, when it has one.
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
