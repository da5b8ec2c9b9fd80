// Says how to send the first event of a tag, and celebrates it once, when the tag has it.

import { useEffect, useRef, useState } from "preact/hooks";
import type { Tag } from "./api.ts";
import { address } from "./route.ts";
import { Code, say } from "./ui.tsx";

export function FirstEvent({ tag, domain }: { tag: Tag; domain: string | undefined }) {
  const waited = useRef(tag.lifecycle === "waiting_for_events");
  const [arrived, setArrived] = useState(false);
  const waiting = tag.lifecycle === "waiting_for_events";

  useEffect(() => {
    if (waiting) waited.current = true;
    if (waiting || !waited.current) return;
    waited.current = false;
    setArrived(true);
    say("The first event has arrived");
  }, [waiting]);

  if (arrived) return <Celebration merchant={tag.merchantId} />;
  if (!waiting) return null;
  const command = `curl ${tag.snippet.match(/src="([^"]*)\/script"/)?.[1] ?? "https://" + tag.host}/mark/${tag.tagId} -d '{"muid":"test-visitor","event":"PageView"}'`;
  return (
    <div class="waiting">
      <p>
        <span class="pulse" aria-hidden="true" />
        <strong>Waiting for the first event.</strong> Open a page of the shop
        {domain && (
          <>
            {" "}
            (<a href={`https://${domain}/`} target="_blank" rel="noreferrer">{domain}</a>)
          </>
        )}
        , or send a test event from a terminal:
      </p>
      <Code text={command} label="Command that sends a test event" what="command" />
    </div>
  );
}

function Celebration({ merchant }: { merchant: string }) {
  return (
    <div class="celebration">
      <svg viewBox="0 0 48 48" aria-hidden="true">
        <circle cx="24" cy="24" r="22" />
        <path d="M14 25l7 7 13-15" />
      </svg>
      <p>
        <strong>The first event is here.</strong> This tag works. <a href={address(`/merchants/${merchant}/events`)}>See the event</a>
      </p>
    </div>
  );
}
