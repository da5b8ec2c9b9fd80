// The frame of all pages: who is signed in, where to go, and which page the address names.

import { useEffect, useErrorBoundary, useRef, useState } from "preact/hooks";
import { slow } from "./api.ts";
import { Audit } from "./audit.tsx";
import { Destinations } from "./delivery.tsx";
import { Events } from "./events.tsx";
import { Live } from "./live.tsx";
import { MerchantFrame } from "./merchant.tsx";
import { MerchantSettings } from "./merchantsettings.tsx";
import { Merchants } from "./merchants.tsx";
import { Overview } from "./operator.tsx";
import { Privacy } from "./privacy.tsx";
import { Refused } from "./refused.tsx";
import { address, go, place, useTitle } from "./route.ts";
import { begin, ignoreLink, nameOf, notice, offered, session, signIn, signOut, useLink, type Session } from "./session.ts";
import { Settings } from "./settings.tsx";
import { Tags } from "./tags.tsx";
import { Button, Empty, Field, Form, Heading, Pill, Problem, Sayings, useTask } from "./ui.tsx";

export function App() {
  useEffect(() => void begin(), []);
  const known = session.value;
  return (
    <>
      <a class="skip" href="#main">Skip to the content</a>
      {slow.value && <div class="progress" role="progressbar" aria-label="Loading" />}
      {!known && <Brand />}
      {known && <Header />}
      {known !== undefined && offered.value ? <Offer to={offered.value.to} /> : known === null && <SignIn />}
      {known && !offered.value && (
        <main id="main">
          <Page />
        </main>
      )}
      <Sayings />
    </>
  );
}

function Logo() {
  return (
    <svg class="logo" viewBox="0 0 32 32" aria-hidden="true">
      <rect width="32" height="32" rx="8" />
      <path d="M8 21.5v-9l8 6 8-6v9" />
    </svg>
  );
}

// Brand is the header while nobody is signed in. index.html has it, too: it is there before this program is.
function Brand() {
  return (
    <header class="top">
      <span class="brand">
        <Logo />
        mtagd
      </span>
    </header>
  );
}

function Header() {
  const { role, partner, scope } = session.value!;
  const leave = useTask();
  const links =
    role === "operator"
      ? [["/overview", "Overview"], ["/audit", "Audit log"]]
      : [["/merchants", "Merchants"], ["/settings", "Settings"]];
  const here = (path: string) => place.value.path.startsWith(path);
  return (
    <header class="top">
      <a class="brand" href={address(links[0]![0]!)}>
        <Logo />
        mtagd
      </a>
      <nav aria-label="Main">
        {links.map(([path, name]) => (
          <a key={path} href={address(path!)} aria-current={here(path!) ? "page" : undefined}>
            {name}
          </a>
        ))}
      </nav>
      <p class="who">
        <span>{role === "operator" ? "Operator" : partner?.name}</span>
        {role === "partner" && scope === "read-only" && <Pill tone="plain">Read only</Pill>}
      </p>
      <Button kind="quiet" busy={leave.busy} onClick={() => leave.run(() => signOut())}>
        Sign out
      </Button>
      {leave.error && <Problem message={leave.error} />}
    </header>
  );
}

function SignIn() {
  const [key, setKey] = useState("");
  const [empty, setEmpty] = useState(false);
  const heading = useRef<HTMLHeadingElement>(null);
  const task = useTask();
  useTitle("Sign in", heading);
  const error = empty ? "Paste your API key. It begins with mtp_." : task.error && refusal(task.error);
  return (
    <main id="main" class="signin">
      <Form onSubmit={() => {
        const text = key.replace(/^\s*(Bearer\s+)?/i, "").trim();
        setEmpty(!text);
        if (text) void task.run(() => signIn(text));
      }}>
        <h1 ref={heading} tabIndex={-1}>Sign in</h1>
        <p class="dim">Create merchants, set up their tags, and see their events.</p>
        {notice.value && <p class="note" role="status">{notice.value}</p>}
        <Field label="API key" error={error} hint="The operator of the service gives you the first one.">
          {(ids) => (
            <input {...ids} type="password" value={key} autocomplete="current-password" spellcheck={false} autocapitalize="off" placeholder="mtp_…" onInput={(event) => setKey(event.currentTarget.value)} />
          )}
        </Field>
        <Button type="submit" kind="primary" busy={task.busy}>Sign in</Button>
      </Form>
    </main>
  );
}

// Offer asks whether a link may sign in.
function Offer({ to }: { to: Session }) {
  const heading = useRef<HTMLHeadingElement>(null);
  const task = useTask();
  const name = nameOf(to);
  useTitle(`Sign in as ${name}?`, heading);
  return (
    <main id="main" class="signin">
      <Form onSubmit={() => task.run(useLink)}>
        <h1 ref={heading} tabIndex={-1}>Sign in as {name}?</h1>
        {session.value && <p>You are signed in as <b>{nameOf(session.value)}</b>. The link that you have opened ends this session.</p>}
        <p>Use the link only if you have asked for it. Otherwise you would work in the account of whoever has sent it.</p>
        {task.error && <Problem message={task.error} />}
        <div class="actions start">
          <Button kind={session.value ? "primary" : undefined} onClick={ignoreLink}>{session.value ? "Stay signed in" : "Cancel"}</Button>
          <Button type="submit" kind={session.value ? undefined : "primary"} busy={task.busy}>Sign in as {name}</Button>
        </div>
      </Form>
    </main>
  );
}

function refusal(message: string): string {
  return message.startsWith("Authentication required") ? "This key is not valid: it is mistyped, expired or revoked." : message;
}

function Page() {
  const path = place.value.path;
  const [fault] = useErrorBoundary();
  const operator = session.value!.role === "operator";
  const home = operator ? "/overview" : "/merchants";
  useEffect(() => {
    if (path === "/") go(address(home), true);
  }, [path]);
  if (fault) return <Problem message={`This page has a fault: ${fault.message ?? fault}. Load it again.`} retry={() => location.reload()} />;
  if (path === "/") return null;
  if (operator) {
    if (path === "/overview") return <Overview />;
    if (path === "/audit") return <Audit />;
    return <Lost home={home} />;
  }
  if (path === "/merchants") return <Merchants />;
  if (path === "/settings") return <Settings />;
  const [, id, part = ""] = /^\/merchants\/([0-9a-fA-F-]+)(?:\/([a-z]+))?$/.exec(path) ?? [];
  const View = id ? parts[part] : undefined;
  if (!id || !View) return <Lost home={home} />;
  return (
    <MerchantFrame key={id} id={id} part={part}>
      {(merchant, reload) => <View merchant={merchant} reload={reload} />}
    </MerchantFrame>
  );
}

const parts: Record<string, typeof Tags> = {
  "": Tags,
  events: Events,
  live: Live,
  refused: Refused,
  delivery: Destinations,
  privacy: Privacy,
  settings: MerchantSettings,
};

function Lost({ home }: { home: string }) {
  return (
    <>
      <Heading title="Page not found" />
      <Empty title="There is no page at this address.">
        <a class="button" href={address(home)}>Go to the start</a>
      </Empty>
    </>
  );
}
