// The events of a merchant as they come in.

import { useEffect, useRef, useState } from "preact/hooks";
import { call, url, type ReceivedEvent, type Schemas } from "./api.ts";
import { EventRow } from "./eventrow.tsx";
import { count } from "./format.ts";
import { TagChoice, type Part } from "./merchant.tsx";
import { change, place } from "./route.ts";
import { check } from "./session.ts";
import { Button, Empty, Heading } from "./ui.tsx";

// kept is how many events the page holds. Older ones are in the list of events.
const kept = 500;

// longest is how long the page may have been away, in ms, to catch up on what came meanwhile.
const longest = 10 * 60 * 1000;

type State = "connecting" | "open" | "broken";

export function Live({ merchant }: Part) {
  const query = place.value.query;
  const names = (query.get("names") ?? "").split(",").map((n) => n.trim()).filter(Boolean);
  const tag = query.get("tag") ?? "";
  const muid = (query.get("muid") ?? "").trim();
  const [paused, setPaused] = useState(false);
  const { events, total, state, skipped, clear } = useFeed(merchant.merchantId, paused);
  const matching = events.filter((e) => (names.length === 0 || names.includes(e.event_name)) && (!tag || e.tagId === tag) && (!muid || e.muid === muid));
  return (
    <>
      <Heading level={2} title={`Live events of ${merchant.name}`}>Live</Heading>
      <div class="headline">
        <p role="status" class="connection">
          <span class={state === "open" && !paused ? "pulse" : "pulse off"} aria-hidden="true" />
          {paused ? "Paused" : { connecting: "Connecting…", open: "Connected", broken: "The connection was lost. Trying again…" }[state]}
        </p>
        <span class="dim">{count(total, "event")} since you opened this page</span>
        <span class="downloads">
          <Button onClick={() => setPaused(!paused)}>{paused ? "Go on" : "Pause"}</Button>
          <Button onClick={clear}>Clear</Button>
        </span>
      </div>
      {skipped && <p class="dim">You were away for more than ten minutes. What came in then is in the list of events.</p>}
      <div class="filters">
        <div class="more">
          <label>
            Names
            <input value={query.get("names") ?? ""} placeholder="Purchase, AddToCart" autocomplete="off" spellcheck={false} onInput={(event) => change({ names: event.currentTarget.value }, true)} />
          </label>
          <label>
            Tag
            <TagChoice merchant={merchant} tag={tag} />
          </label>
          <label class="wide">
            Visitor (muid)
            <input value={query.get("muid") ?? ""} autocomplete="off" spellcheck={false} onInput={(event) => change({ muid: event.currentTarget.value }, true)} />
          </label>
        </div>
      </div>
      {matching.length === 0 ? (
        <Empty title={events.length > 0 ? "No event matches the filters." : "Waiting for events."}>
          {events.length === 0 && <p class="dim">Events are shown here within a second of their arrival. Open a page of the shop to see one.</p>}
        </Empty>
      ) : (
        <div class="rows">
          {matching.map((e) => (
            <EventRow key={e.id} event={e} live />
          ))}
        </div>
      )}
    </>
  );
}

// useFeed follows the feed. Events are put on the page four times a second, however many come in.
function useFeed(merchant: string, paused: boolean) {
  const [feed, setFeed] = useState<{ events: ReceivedEvent[]; total: number }>({ events: [], total: 0 });
  const [state, setState] = useState<State>("connecting");
  const [skipped, setSkipped] = useState(false);
  // at is the cursor after the last event that the page has, and when it was there last.
  const at = useRef({ cursor: "", left: 0 });
  useEffect(() => {
    if (paused) return;
    let stream: EventSource | undefined;
    let retry: ReturnType<typeof setTimeout> | undefined;
    let waiting: ReceivedEvent[] = [];
    let stopped = 0; // how often: a cursor that comes after it is too late
    const open = async () => {
      const before = stopped;
      if (!at.current.cursor) {
        try {
          at.current.cursor = (await call<Schemas["FeedPage"]>("GET", url("/events/feed", { merchantId: merchant, after: "latest", limit: 1 }))).cursor;
        } catch {
          if (before !== stopped) return;
          setState("broken");
          retry = setTimeout(open, 5000);
          return;
        }
        if (before !== stopped) return;
      }
      stream = new EventSource(url("/events/feed", { merchantId: merchant, after: at.current.cursor }));
      stream.onopen = () => setState("open");
      stream.onmessage = (message) => {
        at.current.cursor = message.lastEventId;
        waiting.push(JSON.parse(message.data) as ReceivedEvent);
      };
      stream.onerror = () => {
        setState("broken");
        if (stream?.readyState !== EventSource.CLOSED) return; // the browser tries again by itself
        void check();
        retry = setTimeout(open, 5000);
      };
    };
    const show = () => {
      if (waiting.length === 0) return;
      const more = waiting.reverse();
      waiting = [];
      setFeed((f) => ({ events: [...more, ...f.events].slice(0, kept), total: f.total + more.length }));
    };
    const timer = setInterval(show, 250);
    const close = () => {
      stopped++;
      if (stream) at.current.left = Date.now();
      stream?.close();
      stream = undefined;
      clearTimeout(retry);
    };
    // A browser has only six connections to a host, for all its tabs. So a tab that nobody sees gives its own back.
    const follow = () => {
      close();
      if (document.visibilityState !== "visible") return;
      if (at.current.cursor && Date.now() - at.current.left > longest) {
        at.current.cursor = "";
        setSkipped(true);
      }
      setState("connecting");
      void open();
    };
    document.addEventListener("visibilitychange", follow);
    follow();
    return () => {
      document.removeEventListener("visibilitychange", follow);
      close();
      clearInterval(timer);
      show();
    };
  }, [merchant, paused]);
  return { ...feed, state, skipped, clear: () => setFeed((f) => ({ ...f, events: [] })) };
}
