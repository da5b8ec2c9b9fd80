// The lock: only one tab of a site sends at a time. Otherwise two tabs would send the same stored events.

import { PREFIX, stored } from './storage';

const LEASE = PREFIX + 'lease';
const TERM = 5e3; // ms that a lease lasts; after a tab was killed, the others wait at most this long
const DOUBT = 50; // ms after which a tab checks its lease again; it sees with a delay what other tabs store

// release gives up the lock if this tab holds it.
export let release = () => {};

// exclusively does the work if this tab gets the lock, and returns whether it did. With a lease two tabs may hold the
// lock for a moment. That does no harm: the tag host records an event once.
export async function exclusively(work: () => Promise<void>) {
  let done: Promise<void> | undefined;
  const turn = () => Promise.race([(done = work()), new Promise<void>((resolve) => (release = resolve))]);
  try {
    await navigator.locks.request(PREFIX, { ifAvailable: true }, (lock) => lock && turn());
  } catch {
    // Pages without TLS and pages in a sandbox have no Web Locks. They use a lease in localStorage: the time until
    // which one tab holds the lock. The tab renews its lease while it works.
    const lease = () => stored((s) => s.getItem(LEASE));
    const end = () => stored((s) => s.removeItem(LEASE));
    const left = +lease()! - Date.now();
    // A lease that is longer than its term is from before the clock was set back: ignore it.
    if (left > 0 && left < TERM + 1) return false;
    let mine: string;
    const take = () => stored((s) => s.setItem(LEASE, (mine = Date.now() + TERM + Math.random() + '')));
    take();
    let renewal: number;
    // When localStorage is denied or full, the lease is not stored, and the tab sends without it.
    if (lease() == mine!) {
      release = end;
      await new Promise((resolve) => setTimeout(resolve, DOUBT));
      if (lease() != mine!) return false;
      renewal = setInterval(() => lease() == mine && take(), TERM / 2);
    }
    await turn();
    clearInterval(renewal!);
    end();
  }
  await done;
  return !!done;
}
