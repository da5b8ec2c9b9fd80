// The frame of a merchant's pages: its name, and the way to each of them.

import type { ComponentChildren } from "preact";
import { useEffect, useRef } from "preact/hooks";
import { url, type Merchant } from "./api.ts";
import { useGet } from "./resource.ts";
import { address, change } from "./route.ts";
import { typeNames } from "./status.ts";
import { Empty, Heading, Loaded, Pill } from "./ui.tsx";

// Part is one of a merchant's pages. reload reads the merchant again after a change.
export interface Part {
  merchant: Merchant;
  reload: () => Promise<void>;
}

const parts = [
  ["", "Tags"],
  ["events", "Events"],
  ["live", "Live"],
  ["refused", "Refused"],
  ["delivery", "Delivery"],
  ["privacy", "Privacy"],
  ["settings", "Settings"],
] as const;

export function MerchantFrame({ id, part, children }: { id: string; part: string; children: (merchant: Merchant, reload: () => Promise<void>) => ComponentChildren }) {
  const merchant = useGet<Merchant>(url("/merchant/" + id));
  const path = "/merchants/" + id;
  if (merchant.missing) {
    return (
      <>
        <Heading title="Merchant not found" />
        <Empty title="You have no merchant with this id.">
          <p class="dim">Perhaps it was deleted, or you are signed in as another partner.</p>
          <a class="button" href={address("/merchants")}>Show your merchants</a>
        </Empty>
      </>
    );
  }
  return (
    <>
      <nav class="crumbs" aria-label="Breadcrumb">
        <a href={address("/merchants")}>Merchants</a>
      </nav>
      <Loaded of={merchant}>
        {(m) => (
          <>
            <div class="headline">
              <h1>{m.name}</h1>
              {m.domain && <span class="dim">{m.domain}</span>}
              {m.suspended && <Pill tone="bad">Suspended</Pill>}
            </div>
            {m.suspended && (
              <p class="note bad">The operator of the service has suspended this merchant, or you. No events are accepted until the suspension ends. Everything recorded is kept.</p>
            )}
            <Tabs path={path} part={part} />
            {children(m, merchant.reload)}
          </>
        )}
      </Loaded>
    </>
  );
}

// TagChoice is the filter of a page by tag.
export function TagChoice({ merchant, tag }: { merchant: Merchant; tag: string }) {
  return (
    <select value={tag} onChange={(event) => change({ tag: event.currentTarget.value })}>
      <option value="">All</option>
      {Object.entries(merchant.tracktags).map(([type, t]) => (
        <option key={type} value={t!.tagId}>{typeNames[type as keyof typeof typeNames]}</option>
      ))}
    </select>
  );
}

function Tabs({ path, part }: { path: string; part: string }) {
  const current = useRef<HTMLAnchorElement>(null);
  useEffect(() => current.current?.scrollIntoView({ block: "nearest", inline: "center" }), [part]); // on a phone it may be out of view
  return (
    <nav class="tabs" aria-label="Merchant">
      {parts.map(([name, label]) => (
        <a key={name} ref={name === part ? current : null} href={address(name ? path + "/" + name : path)} aria-current={name === part ? "page" : undefined}>
          {label}
        </a>
      ))}
    </nav>
  );
}
