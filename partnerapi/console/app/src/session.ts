// Who is signed in.

import { computed, signal } from "@preact/signals";
import { call, Failure, messageOf, whenSignedOut } from "./api.ts";
import { focusHeading } from "./route.ts";

export interface Session {
  role: "partner" | "operator";
  partner?: { id: string; name: string };
  scope: "full" | "read-only";
  expiresAt: string;
}

// session is undefined until it is known, and null without one.
export const session = signal<Session | null | undefined>(undefined);

// notice is the sentence above the sign-in: why it is needed.
export const notice = signal("");

// offered is a link that was opened while somebody is signed in. It is used only when the person says so: otherwise whoever sends
// a link could put another one into a session of his own, unnoticed.
export const offered = signal("");

// mayChange is false for a key that can only read.
export const mayChange = computed(() => session.value?.scope === "full");

const path = "/console/session";

// begin finds the session of this browser, or makes one from a link: the token in the address is removed from it at once.
export async function begin(): Promise<void> {
  whenSignedOut(() => {
    if (session.value) notice.value = "Your session has ended. Sign in again to go on where you were.";
    focusHeading();
    session.value = null;
  });
  const link = /^#link=(.+)$/.exec(location.hash)?.[1];
  if (link) history.replaceState(null, "", location.pathname + location.search);
  try {
    session.value = await call("GET", path);
    offered.value = link ?? "";
  } catch (error) {
    if (link) {
      await useLink(link).catch((refused) => (notice.value = messageOf(refused)));
      session.value ??= null;
      return;
    }
    session.value = null;
    if (!(error instanceof Failure && error.status === 401)) notice.value = messageOf(error);
  }
}

// useLink signs in with the token of a link.
export async function useLink(link: string): Promise<void> {
  try {
    session.value = await call("POST", path, { body: { link: decodeURIComponent(link) } });
  } catch (error) {
    if (!(error instanceof Failure && error.status === 401)) throw error;
    throw new Error("This link does not work any more: it was used, or is older than 15 minutes. Ask for a new one, or sign in with an API key.");
  }
  offered.value = "";
}

// check asks whether the session goes on: a stream does not say why it ended.
export async function check(): Promise<void> {
  try {
    await call("GET", path);
  } catch (error) {
    if (!(error instanceof Failure && error.status === 401)) return; // the service cannot be reached
    notice.value = "Your session has ended. Sign in again to go on where you were.";
    session.value = null;
  }
}

export async function signIn(apiKey: string): Promise<void> {
  const begun = await call<Session>("POST", path, { body: { apiKey } });
  focusHeading();
  session.value = begun;
  notice.value = "";
}

export async function signOut(): Promise<void> {
  await call("DELETE", path);
  notice.value = "You are signed out.";
  focusHeading();
  session.value = null;
}
