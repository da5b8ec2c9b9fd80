// What a page loads from the service.

import { useEffect, useRef, useState } from "preact/hooks";
import { call, Failure, messageOf } from "./api.ts";

export interface Resource<T> {
  data: T | undefined;
  error: string | undefined;
  missing: boolean; // the error is that there is no such thing
  late: boolean; // it has been loading for 300 ms: time for a skeleton
  stale: boolean; // data is that of the parameters before
  reload: () => Promise<void>;
  set: (data: T) => void;
}

// useResource loads what the key names, and loads it again when the key changes. While only the key's query changes,
// the data before stays on the page. A null key loads nothing.
export function useResource<T>(key: string | null, load: (key: string, signal: AbortSignal) => Promise<T>): Resource<T> {
  const [state, setState] = useState<{ key: string | null; data?: T; error?: string; missing?: boolean; late: boolean }>({ key: null, late: false });
  const current = useRef<AbortController | undefined>(undefined);

  const run = async (key: string) => {
    current.current?.abort();
    const controller = new AbortController();
    current.current = controller;
    const timer = setTimeout(() => setState((s) => ({ ...s, late: true })), 300);
    try {
      const data = await load(key, controller.signal);
      if (!controller.signal.aborted) setState({ key, data, late: false });
    } catch (error) {
      if (!controller.signal.aborted) setState((s) => ({ ...(same(s.key, key) ? s : { key }), error: messageOf(error), missing: error instanceof Failure && error.status === 404, late: false }));
    } finally {
      clearTimeout(timer);
    }
  };
  useEffect(() => {
    if (key !== null) void run(key);
    return () => current.current?.abort();
  }, [key]);

  const fits = same(state.key, key);
  return {
    data: fits ? state.data : undefined,
    error: fits ? state.error : undefined,
    missing: fits && state.missing === true,
    late: state.late,
    stale: state.key !== key,
    reload: () => (key === null ? Promise.resolve() : run(key)),
    set: (data) => setState({ key, data, late: false }),
  };
}

// useGet loads what a GET of the key's address answers.
export const useGet = <T>(key: string) => useResource(key, (key, signal) => call<T>("GET", key, { signal }));

function same(a: string | null, b: string | null): boolean {
  return a?.split("?")[0] === b?.split("?")[0];
}

// useEvery calls f every some milliseconds while the page is visible and active is true, but not before the call before has ended.
export function useEvery(milliseconds: number, active: boolean, f: () => Promise<void>): void {
  const latest = useRef(f);
  latest.current = f;
  useEffect(() => {
    if (!active) return;
    let busy = false;
    const timer = setInterval(async () => {
      if (busy || document.visibilityState !== "visible") return;
      busy = true;
      await latest.current();
      busy = false;
    }, milliseconds);
    return () => clearInterval(timer);
  }, [milliseconds, active]);
}
