// Who is signed in.

import { computed, signal } from "@preact/signals";
import { call, Failure, messageOf, whenSignedOut } from "./api.ts";
import { focusHeading } from "./route.ts";
import { say } from "./ui.tsx";

export interface Session {
  role: "partner" | "operator";
  partner?: { id: string; name: string };
  scope: "full" | "read-only";
  personalData?: true; // read-only, but may ask what is held of a person
  expiresAt: string;
}

// session is undefined until it is known, and null without one.
export const session = signal<Session | null | undefined>(undefined);

// notice is the sentence above the sign-in: why it is needed.
export const notice = signal("");

// offered is a link that was opened, and whom it signs in. It is used only when the person says so: otherwise whoever sends a link
// could put another one into a session of his own, unnoticed.
export const offered = signal<{ link: string; to: Session } | undefined>(undefined);

// nameOf says who is, or would be, signed in.
export const nameOf = (s: Session) => (s.role === "operator" ? "an operator" : (s.partner?.name ?? ""));

// mayChange is false for a key that can only read.
export const mayChange = computed(() => session.value?.scope === "full");
export const mayReadPersons = computed(() => mayChange.value || session.value?.personalData === true);

const path = "/console/session";

// begin finds the session of this browser, and looks at the link in the address, which is removed from it at once.
export async function begin(): Promise<void> {
  whenSignedOut(() => {
    if (session.value) notice.value = "Your session has ended. Sign in again to go on where you were.";
    focusHeading();
    session.value = null;
  });
  const link = /^#link=(.+)$/.exec(location.hash)?.[1];
  if (link) history.replaceState(null, "", location.pathname + location.search);
  let known: Session | null = null;
  try {
    known = await call<Session>("GET", path);
  } catch (error) {
    if (!(error instanceof Failure && error.status === 401)) notice.value = messageOf(error);
  }
  if (link) {
    try {
      offered.value = { link, to: await send("/console/link", link) };
    } catch (refused) {
      if (known) say(messageOf(refused));
      else notice.value = messageOf(refused);
    }
  }
  session.value = known;
}

// useLink signs in with the link that is offered.
export async function useLink(): Promise<void> {
  const begun = await send(path, offered.value!.link);
  focusHeading();
  session.value = begun;
  notice.value = "";
  offered.value = undefined;
}

export function ignoreLink(): void {
  focusHeading();
  offered.value = undefined;
}

async function send(path: string, link: string): Promise<Session> {
  try {
    return await call<Session>("POST", path, { body: { link } });
  } catch (error) {
    if (!(error instanceof Failure && error.status === 401)) throw error;
    throw new Error("This link does not work any more: it was used, or is older than 15 minutes. Ask for a new one, or sign in with an API key.");
  }
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

// signOut ends the session of this browser, or all sessions of the partner.
export async function signOut(everywhere = false): Promise<void> {
  await call("DELETE", everywhere ? path + "s" : path);
  notice.value = everywhere ? "All are signed out." : "You are signed out.";
  focusHeading();
  session.value = null;
}
