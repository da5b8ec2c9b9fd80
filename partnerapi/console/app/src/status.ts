// How a tag and a merchant are doing, in two or three words.

import type { Merchant, Tag } from "./api.ts";
import type { Tone } from "./ui.tsx";

export interface Status {
  text: string;
  tone: Tone;
  since?: string; // a time that belongs to the text
}

// silentAfter is how long a tag that had events may have none before it is called silent, in ms.
const silentAfter = 24 * 3600 * 1000;

export function statusOfTag(tag: Tag, now = Date.now()): Status {
  if (tag.suspended) return { text: "Suspended", tone: "bad" };
  if (tag.domainLost) return { text: "Domain lost", tone: "bad" };
  if (tag.lifecycle === "waiting_for_dns") return { text: "Waiting for DNS", tone: "warn" };
  if (tag.isVerified && !tag.isConnected) return { text: "DNS changed", tone: "bad" };
  if (tag.certificate?.status === "failed") return { text: "Certificate failed", tone: "bad" };
  if (tag.certificate && tag.certificate.status !== "valid" && tag.type === "server-side") return { text: "Waiting for certificate", tone: "warn" };
  if (tag.lifecycle === "waiting_for_events" || !tag.lastEventAt) return { text: "Waiting for first event", tone: "accent" };
  if (now - new Date(tag.lastEventAt).getTime() > silentAfter) return { text: "Silent since", tone: "warn", since: tag.lastEventAt };
  return { text: "Receiving", tone: "good" };
}

// statusOfMerchant picks the status that needs attention first, and else the best one.
export function statusOfMerchant(merchant: Merchant, tags: Tag[]): Status {
  if (merchant.suspended) return { text: "Suspended", tone: "bad" };
  const all = tags.map((tag) => statusOfTag(tag));
  const silent = all.filter((s) => s.text === "Silent since").sort((a, b) => (a.since! < b.since! ? 1 : -1))[0];
  return (
    all.find((s) => s.tone === "bad") ??
    all.find((s) => s.tone === "good") ??
    silent ??
    all.find((s) => s.tone === "accent") ??
    all[0] ?? { text: "No tag yet", tone: "plain" }
  );
}

export const typeNames: Record<Tag["type"], string> = {
  "client-side": "Client-side",
  "server-side": "Server-side",
  preverified: "Preverified",
};
