// The parts that all pages are made of.

import type { AllHTMLAttributes, ButtonHTMLAttributes, ComponentChildren } from "preact";
import { signal } from "@preact/signals";
import { useEffect, useId, useLayoutEffect, useRef, useState } from "preact/hooks";
import { messageOf, type Pagination } from "./api.ts";
import { ago, dayAndTime, number } from "./format.ts";
import type { Resource } from "./resource.ts";
import { address, place, useTitle } from "./route.ts";

type Children = { children?: ComponentChildren };

// Heading is the heading of a page, or of the part of it that the address names. The focus moves to it. That of a part is
// for screen readers: the tabs show it, too.
export function Heading({ level = 1, title, children }: Children & { level?: 1 | 2; title: string | undefined }) {
  const ref = useRef<HTMLHeadingElement>(null);
  useTitle(title, ref);
  const Tag = level === 1 ? "h1" : "h2";
  return (
    <Tag ref={ref} tabIndex={-1} class={level === 2 ? "unseen" : undefined}>
      {children ?? title ?? "…"}
    </Tag>
  );
}

export type Tone = "good" | "warn" | "bad" | "plain" | "accent";

export function Pill({ tone, children }: Children & { tone: Tone }) {
  return <span class={"pill " + tone}>{children}</span>;
}

// Time shows a moment. It has the exact time as its title when it is written as a distance from now.
export function Time({ at, distance = false }: { at: string; distance?: boolean }) {
  return (
    <time dateTime={at} title={distance ? dayAndTime(at) : undefined}>
      {distance ? ago(at) : dayAndTime(at)}
    </time>
  );
}

interface ButtonProps extends Omit<ButtonHTMLAttributes<HTMLButtonElement>, "onClick"> {
  kind?: "primary" | "danger" | "quiet";
  busy?: boolean;
  onClick?: () => unknown;
}

// Button is a button. While it is busy, it keeps the focus and does nothing.
export function Button({ kind, busy = false, onClick, type = "button", children, class: more, ...rest }: ButtonProps & Children & { class?: string | undefined }) {
  return (
    <button
      {...rest}
      type={type}
      class={["button", kind, more].filter(Boolean).join(" ")}
      aria-disabled={busy || undefined}
      onClick={(event) => {
        if (busy) event.preventDefault();
        else onClick?.();
      }}
    >
      {busy && <span class="spinner" aria-hidden="true" />}
      {children}
    </button>
  );
}

// Copy copies a text. Where the browser does not allow that, the text is there to be selected.
export function Copy({ text, what, label = "Copy", size = "small" }: { text: string; what: string; label?: string; size?: "small" | "full" }) {
  const [done, setDone] = useState(false);
  useEffect(() => {
    if (!done) return;
    const timer = setTimeout(() => setDone(false), 2000);
    return () => clearTimeout(timer);
  }, [done]);
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(text);
      setDone(true);
      say(`${what} copied`);
    } catch {
      say("The browser does not allow copying here. Select the text, and copy it.");
    }
  };
  return (
    <Button class={size === "small" ? "copy" : undefined} onClick={copy} aria-label={`${done ? "Copied" : label}: ${what}`}>
      {done ? "Copied" : label}
    </Button>
  );
}

interface Labels {
  label: string;
  hint?: ComponentChildren;
  error?: string | undefined;
}

// Field is a form field with its label. The child gets the ids that connect it to the label, the hint and the error.
export function Field(props: Labels & {
  children: (ids: { id: string; "aria-describedby": string | undefined; "aria-invalid": boolean | undefined }) => ComponentChildren;
}) {
  const id = useId();
  const described = [props.hint && id + "h", props.error && id + "e"].filter(Boolean).join(" ") || undefined;
  return (
    <div class="field">
      <label for={id}>{props.label}</label>
      {props.children({ id, "aria-describedby": described, "aria-invalid": props.error ? true : undefined })}
      {props.hint && <p class="hint" id={id + "h"}>{props.hint}</p>}
      {props.error && <p class="wrong" id={id + "e"}>{props.error}</p>}
    </div>
  );
}

interface TextProps extends Labels, Pick<AllHTMLAttributes<HTMLInputElement>, "required" | "maxLength" | "min" | "max" | "placeholder" | "inputMode" | "autocapitalize" | "spellcheck"> {
  value: string;
  set: (text: string) => void;
  type?: "text" | "password" | "number";
}

// Text is a field with one line.
export function Text({ label, hint, error, set, ...rest }: TextProps) {
  return (
    <Field label={label} hint={hint} error={error}>
      {(ids) => <input autocomplete="off" {...(rest as { type: "text" })} {...ids} onInput={(event) => set(event.currentTarget.value)} />}
    </Field>
  );
}

// Choice is a field with one of some values.
export function Choice<T extends string>({ label, hint, value, set, of }: Labels & { value: T; set: (value: T) => void; of: [value: string, text: string][] }) {
  return (
    <Field label={label} hint={hint}>
      {(ids) => (
        <select {...ids} value={value} onChange={(event) => set(event.currentTarget.value as T)}>
          {of.map(([value, text]) => <option key={value} value={value}>{text}</option>)}
        </select>
      )}
    </Field>
  );
}

// Check is a choice between yes and no. The hint says more.
export function Check({ label, hint, checked, set }: { label: string; hint: string; checked: boolean; set: (checked: boolean) => void }) {
  return (
    <label class="check">
      <input type="checkbox" checked={checked} onChange={(event) => set(event.currentTarget.checked)} />
      <span>
        {label}
        <small>{hint}</small>
      </span>
    </label>
  );
}

// Code is a text to copy.
export function Code({ text, label, what }: { text: string; label: string; what: string }) {
  return (
    <div class="code">
      <pre tabIndex={0} aria-label={label}><code>{text}</code></pre>
      <Copy text={text} what={what} />
    </div>
  );
}

// Form is a form that is sent by a program.
export function Form({ onSubmit, class: kind, children }: Children & { onSubmit: () => unknown; class?: string }) {
  const submit = (event: Event) => {
    event.preventDefault();
    void onSubmit();
  };
  return <form class={kind} onSubmit={submit}>{children}</form>;
}

// Section is a part of a page with its own heading, and what is beside that.
export function Section({ title, level = 2, aside, children }: Children & { title: string; level?: 2 | 3; aside?: ComponentChildren }) {
  const Tag = level === 2 ? "h2" : "h3";
  return (
    <section class="card" aria-label={title}>
      <div class="headline">
        <Tag>{title}</Tag>
        {aside}
      </div>
      {children}
    </section>
  );
}

// Pairs is a list of names with their values.
export function Pairs({ of }: { of: [name: string, value: ComponentChildren][] }) {
  return (
    <dl class="pairs">
      {of.map(([name, value]) => (
        <div key={name}>
          <dt>{name}</dt>
          <dd class="number">{value}</dd>
        </div>
      ))}
    </dl>
  );
}

// Problem is an error, with a way to try again where there is one.
export function Problem({ message, retry }: { message: string; retry?: () => unknown }) {
  return (
    <div class="note bad" role="alert">
      <p>{message}</p>
      {retry && <Button onClick={retry}>Try again</Button>}
    </div>
  );
}

export function Empty({ title, children }: Children & { title: string }) {
  return (
    <div class="empty">
      <p class="lead">{title}</p>
      {children}
    </div>
  );
}

// Loaded shows a resource: nothing at first, bars after 300 ms, then its data, or its error.
export function Loaded<T>({ of, rows = 3, children }: { of: Resource<T>; rows?: number; children: (data: T) => ComponentChildren }) {
  if (of.data === undefined) {
    if (of.error !== undefined) return <Problem message={of.error} retry={of.reload} />;
    return (
      <div class="skeleton" aria-busy="true">
        {of.late && <span class="unseen" role="status">Loading</span>}
        {of.late && Array.from({ length: rows }, (_, i) => <span key={i} class="bar" />)}
      </div>
    );
  }
  return (
    <div class={of.stale ? "stale" : undefined} aria-busy={of.stale || undefined}>
      {of.error !== undefined && <Problem message={of.error} retry={of.reload} />}
      {children(of.data)}
    </div>
  );
}

// Pager leads to the other pages of a list. The page is part of the address.
export function Pager({ of, noun }: { of: Pagination; noun: string }) {
  if (of.totalPages <= 1 && of.currentPage === 1) return null;
  const to = (page: number) => address(place.value.path, { ...Object.fromEntries(place.value.query), page: page > 1 ? String(page) : "" });
  return (
    <nav class="pager" aria-label={`Pages of ${noun}`}>
      {of.hasPreviousPage ? <a class="button" href={to(Math.min(of.currentPage - 1, Math.max(of.totalPages, 1)))}>Previous</a> : <span />}
      <span class="dim">
        Page {number(of.currentPage)} of {number(of.totalPages)}
      </span>
      {of.hasNextPage ? <a class="button" href={to(of.currentPage + 1)}>Next</a> : <span />}
    </nav>
  );
}

// Dialog is a modal dialog while it is shown. Escape closes it.
export function Dialog({ title, onClose, children }: Children & { title: string; onClose: () => void }) {
  const ref = useRef<HTMLDialogElement>(null);
  const id = useId();
  useLayoutEffect(() => {
    const dialog = ref.current!;
    dialog.showModal();
    return () => dialog.close(); // the focus goes back to where it was
  }, []);
  return (
    <dialog
      ref={ref}
      aria-labelledby={id}
      onCancel={(event) => {
        event.preventDefault();
        onClose();
      }}
    >
      <h2 id={id}>{title}</h2>
      {children}
    </dialog>
  );
}

// Confirm asks before something that cannot be undone.
export function Confirm({ title, action, task, onConfirm, onClose, children }: Children & { title: string; action: ComponentChildren; task: Task; onConfirm: () => unknown; onClose: () => void }) {
  return (
    <Dialog title={title} onClose={onClose}>
      {children}
      {task.error && <Problem message={task.error} />}
      <div class="actions">
        <Button onClick={onClose}>Cancel</Button>
        <Button kind="danger" busy={task.busy} onClick={onConfirm}>{action}</Button>
      </div>
    </Dialog>
  );
}

export interface Task {
  busy: boolean;
  error: string | undefined;
  run: (f: () => Promise<unknown>, done?: string) => Promise<boolean>;
  clear: () => void;
}

// useTask runs one request at a time and keeps its error. After a success it says what is done.
export function useTask(): Task {
  const [state, setState] = useState<{ busy: boolean; error?: string }>({ busy: false });
  const running = useRef(false);
  return {
    busy: state.busy,
    error: state.error,
    clear: () => setState({ busy: false }),
    run: async (f, done) => {
      if (running.current) return false;
      running.current = true;
      setState({ busy: true });
      try {
        await f();
        setState({ busy: false });
        if (done) say(done);
        return true;
      } catch (error) {
        setState({ busy: false, error: messageOf(error) });
        return false;
      } finally {
        running.current = false;
      }
    },
  };
}

// say shows a short message, which screen readers read out.
const said = signal("");
let sayTimer: ReturnType<typeof setTimeout> | undefined;
export function say(text: string): void {
  said.value = text;
  clearTimeout(sayTimer);
  sayTimer = setTimeout(() => (said.value = ""), 5000);
}

// Sayings is where say shows its messages.
export function Sayings() {
  return (
    <div class="sayings" role="status">
      {said.value && <p>{said.value}</p>}
    </div>
  );
}
