// One event in a list. It opens to its JSON.

import { useState } from "preact/hooks";
import type { Event, ReceivedEvent } from "./api.ts";
import { timeOfDay } from "./format.ts";
import { JSONTree } from "./json.tsx";
import { Copy, Pill, Time } from "./ui.tsx";

export function EventRow({ event, live = false }: { event: Event | ReceivedEvent; live?: boolean }) {
  const [open, setOpen] = useState(false);
  return (
    <details class="row event" onToggle={(e) => e.target === e.currentTarget && setOpen(e.currentTarget.open)}>
      <summary>
        <strong>{event.event_name}</strong>
        <span class="muid dim">{event.muid}</span>
        {event.isBot && <Pill tone="plain">Bot</Pill>}
        <span class="when dim">{live ? <time dateTime={event.event_time}>{timeOfDay(event.event_time)}</time> : <Time at={event.event_time} />}</span>
      </summary>
      {open && (
        <div class="json">
          <JSONTree value={event} />
          <Copy text={JSON.stringify(event, null, 2)} what="event" label="Copy JSON of" />
        </div>
      )}
    </details>
  );
}
