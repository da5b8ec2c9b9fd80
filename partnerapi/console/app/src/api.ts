// Requests to the service: the partner API with the session's cookie, and the console's own routes.

import { signal } from "@preact/signals";
import type { components } from "../../../client/typescript/schema.ts";

export type Schemas = components["schemas"];
export type Merchant = Schemas["Merchant"];
export type Tag = Schemas["TagDetails"];
export type TagType = Schemas["Tag"]["type"];
export type Event = Schemas["Event"];
export type ReceivedEvent = Schemas["ReceivedEvent"];
export type Summary = Schemas["Summary"];
export type Key = Schemas["Key"];
export type IssuedKey = Schemas["IssuedKey"];
export type Erasure = Schemas["Erasure"];
export type Pagination = Schemas["Pagination"];
export type Config = Schemas["Config"];
export type MerchantList = Schemas["MerchantList"];
export type Trial = Schemas["Trial"];
export type Finding = Schemas["EventFinding"];
export type Destination = Schemas["Destination"];
export type DeliveryList = Schemas["DeliveryList"];
export type Delivery = DeliveryList["deliveries"][number];

// Failure is a request that failed. Its message is a sentence for people.
export class Failure extends Error {
  constructor(
    readonly status: number, // 0 without an answer
    message: string,
  ) {
    super(message);
  }
}

// onSignedOut is called when the service says that there is no session.
let onSignedOut = () => {};
export function whenSignedOut(f: () => void): void {
  onSignedOut = f;
}

// slow is true while a request has been under way for more than a second.
export const slow = signal(false);
let slowOnes = 0;

export interface Options {
  body?: unknown; // it is sent as JSON
  text?: string; // it is sent as it is
  headers?: Record<string, string>;
  signal?: AbortSignal;
}

// call sends a request and returns the JSON of its answer. It throws a Failure.
export async function call<T>(method: string, path: string, options: Options = {}): Promise<T> {
  const answer = await send(method, path, options);
  return (answer.status === 204 ? undefined : await answer.json()) as T;
}

// send sends a request and returns its answer, if that is no error. It throws a Failure.
export async function send(method: string, path: string, { body, text, headers, signal }: Options = {}): Promise<Response> {
  const init: RequestInit = { method, headers: { "X-Console": "1", ...headers }, credentials: "same-origin" };
  if (signal) init.signal = signal;
  const content = text ?? (body === undefined ? undefined : JSON.stringify(body));
  if (content !== undefined) {
    init.body = content;
    init.headers = { ...init.headers, "Content-Type": "application/json" };
  }
  let counted = false;
  const timer = setTimeout(() => {
    counted = true;
    slowOnes++;
    slow.value = true;
  }, 1000);
  try {
    const answer = await fetch(path, init);
    if (answer.ok) return answer;
    throw await failureOf(answer, path);
  } catch (error) {
    if (error instanceof Failure || signal?.aborted) throw error;
    throw new Failure(0, "The service cannot be reached. Check your connection, and try again.");
  } finally {
    clearTimeout(timer);
    if (counted) slow.value = --slowOnes > 0;
  }
}

async function failureOf(answer: Response, path: string): Promise<Failure> {
  let message = "";
  try {
    const body = await answer.json();
    message = body.message ?? body.error?.message ?? "";
  } catch {
    // Something in between has answered, such as a proxy.
  }
  if (answer.status === 401 && path !== "/console/session" && path !== "/console/link") onSignedOut();
  const wait = answer.headers.get("Retry-After");
  if (answer.status === 429 && wait) return new Failure(429, `There are too many requests. Try again in ${wait} s.`);
  return new Failure(answer.status, sentence(message) || `The service answered with an error (${answer.status}).`);
}

// sentence makes an error's message of the API one that stands alone.
function sentence(message: string): string {
  const text = message.replace(/^Invalid request parameters: /, "");
  if (!text) return "";
  return text[0]!.toUpperCase() + text.slice(1) + (/[.!?]$/.test(text) ? "" : ".");
}

// messageOf returns the sentence of any error.
export function messageOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}

// url returns the address of a request to the partner API. Parameters that are empty are left out.
export function url(path: string, query: Record<string, string | number | undefined> = {}): string {
  const set = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) if (value !== undefined && value !== "") set.set(name, String(value));
  const text = set.toString();
  return "/v1/partners" + path + (text && "?" + text);
}

// newKey returns a new Idempotency-Key.
export function newKey(): string {
  return Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}
