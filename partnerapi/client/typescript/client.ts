// A client of the partner API and of the tag hosts, for Node.js 20 and others that have fetch. It needs no other package. schema.ts
// and routes.ts are generated from the OpenAPI document of the service; the reference page under /v1/docs explains every request.
//
// A request is repeated after a network error, 429 and 5xx, with jittered back-off and not before Retry-After. What creates
// something has an Idempotency-Key, and an event an event_id, so nothing is there twice. The few requests for which the service
// has neither, such as createSecret, are repeated only after 429. A signal ends a request and the waiting between two attempts.
import type { components, operations } from "./schema.js";
import { routes } from "./routes.js";

/** The types of bodies, such as Schemas["Merchant"]. */
export type Schemas = components["schemas"];

type Routes = typeof routes;
type Name = keyof Routes & keyof operations;
type Parameters<N extends Name> = operations[N]["parameters"];
type Part<N extends Name, K extends string> = K extends keyof Parameters<N> ? Exclude<Parameters<N>[K], undefined> : never;
type Field<K extends string, T> = [T] extends [never] ? object : object extends T ? { [key in K]?: T } : { [key in K]: T };
type Body<N extends Name> = operations[N] extends { requestBody: { content: { "application/json": infer B } } } ? B : never;
type Success<R> = R extends { content: { "application/json": infer A } } ? A : never;

/** What an operation takes: `path`, `query` and `body`, as far as it has them. */
export type Request<N extends Name> = Field<"path", Part<N, "path">> & Field<"query", Part<N, "query">> & Field<"body", Body<N>> & {
  /** Your own key instead of a random one. With a stored one you can repeat the request even after a restart, within 24 hours. */
  idempotencyKey?: string;
  signal?: AbortSignal;
};

/** What an operation answers with. */
export type Answer<N extends Name> = {
  [S in keyof operations[N]["responses"]]: S extends 200 | 201 | 202 ? Success<operations[N]["responses"][S]> : never;
}[keyof operations[N]["responses"]];

/** An answer of 400 and more. */
export class MtagdError extends Error {
  override name = "MtagdError";
  /** Such as 404. */
  status: number;
  /** Of the partner API, for programs, such as NOT_FOUND. Empty when something other than the service has answered. */
  code = "";
  /** Of tag hosts: a sentence that says more than `message`. */
  detail = "";
  /** The field or parameter that is wrong; empty if the message names none. */
  field = "";
  /** The service's log has it too. */
  requestId: string;
  /** Seconds; 0 without the header. */
  retryAfter: number;
  /** How often it was sent. After more than one, 404 to a DELETE can mean that an earlier one has deleted it. */
  attempts = 1;
  /** As it was received. */
  body: string;

  constructor(response: Response, body: string) {
    super(`status ${response.status}`);
    this.status = response.status;
    this.requestId = response.headers.get("X-Request-Id") ?? "";
    this.retryAfter = Number(response.headers.get("Retry-After")) || 0;
    this.body = body;
    try {
      const answer = JSON.parse(body);
      const text = typeof answer.error === "object" ? answer.error : answer; // that of verify
      this.message = String(text.message ?? this.message);
      this.code = String(text.code ?? "");
      this.detail = String(answer.detail ?? "");
      this.field = /^Invalid request parameters: (\S+)/.exec(this.message)?.[1] ?? "";
    } catch {
      // Not the service has answered: the status and the body have to do.
    }
  }
}

export interface Options {
  /** How often a request is sent at most; 5 by default. */
  attempts?: number;
  /** About how many milliseconds to wait after the first failure, and twice as long after each further one; 200 by default. */
  backoff?: number;
  /** Milliseconds of one attempt, except for streams; a minute by default. */
  timeout?: number;
  fetch?: typeof fetch;
}

const maxWait = 30_000; // of back-off, in milliseconds; a longer Retry-After is kept

const mayPass = (status: number) => status >= 500 || status === 429 || status === 408;

/** A client of one server. */
export class Client {
  private readonly url: string;
  private readonly options: Required<Options>;

  /** url is that of the base host, with your API key, or of a tag host, with a secret of the merchant. A tag host needs no key. */
  constructor(url: string, private readonly key = "", options: Options = {}) {
    this.url = url.replace(/\/$/, "");
    this.options = { attempts: 5, backoff: 200, timeout: 60_000, fetch: globalThis.fetch, ...options };
  }

  /** Sends a request, and returns the body of the answer. It throws an MtagdError for an answer of 400 and more. */
  async call<N extends Name>(name: N, request: Request<N>): Promise<Answer<N>> {
    return this.send(name, request, async (response) => JSON.parse(await response.text()) as Answer<N>);
  }

  /** The same for answers that are no JSON, such as exportEvents. The body breaks off with an error when it is not complete. */
  async stream<N extends Name>(name: N, request: Request<N>): Promise<ReadableStream<Uint8Array>> {
    return this.send(name, request, async (response) => response.body!, true);
  }

  /** Sends an event to the tag host. When it returns, the event is on disk. An event without an event_id gets a random one. */
  async sendEvent(tagId: string, event: Schemas["NewEvent"], signal?: AbortSignal): Promise<void> {
    await this.call("sendEvents", { path: { tagId }, body: { event_id: crypto.randomUUID(), ...event }, signal });
  }

  /** Sends a batch of up to 1,000 events. The result has one status for each of them, in order. */
  async sendEvents(tagId: string, events: Schemas["NewEvent"][], signal?: AbortSignal): Promise<Schemas["BatchResults"]> {
    const body = events.map((event) => ({ event_id: crypto.randomUUID(), ...event }));
    return (await this.call("sendEvents", { path: { tagId }, body, signal })) as Schemas["BatchResults"];
  }

  /** Lists the merchants of all pages. */
  merchants(query: Part<"listMerchants", "query"> = {}, signal?: AbortSignal): AsyncGenerator<Schemas["Merchant"]> {
    return all(async (page) => {
      const answer = await this.call("listMerchants", { query: { limit: 100, ...query, page }, signal });
      return [answer.merchants, answer.pagination.hasNextPage];
    });
  }

  /** Lists the events of all pages. New events move those of the default order to later pages: to copy events use feed. */
  events(query: Part<"listEvents", "query">, signal?: AbortSignal): AsyncGenerator<Schemas["Event"]> {
    return all(async (page) => {
      const answer = await this.call("listEvents", { query: { limit: 100, ...query, page }, signal });
      return [answer.events, answer.pagination.hasNextPage];
    });
  }

  /**
   * Follows your events in the order of receipt, from `after` on. Store the cursor of each page together with what you made of its
   * events; a later feed that begins there goes on exactly after them. It waits for new events for ever, and survives outages: it
   * throws when the signal is aborted, and for what waiting does not help with, such as 401.
   */
  async *feed(query: Part<"readFeed", "query"> = {}, signal?: AbortSignal): AsyncGenerator<Schemas["FeedPage"]> {
    for (let failures = 0; ; ) {
      let page: Schemas["FeedPage"];
      try {
        page = await this.call("readFeed", { query: { wait: 30, ...query }, signal });
      } catch (error) {
        if (signal?.aborted || (error instanceof MtagdError && !mayPass(error.status))) throw error;
        await this.wait(this.options.attempts + ++failures, 0, signal);
        continue;
      }
      failures = 0;
      query = { ...query, after: page.cursor };
      if (page.events.length > 0) yield page;
    }
  }

  private async send<T>(name: Name, request: object, read: (response: Response) => Promise<T>, isStream = false): Promise<T> {
    const [method, path, repeat] = routes[name];
    const { path: names = {}, query = {}, body, idempotencyKey, signal } = request as {
      path?: Record<string, string>; query?: Record<string, unknown>; body?: unknown; idempotencyKey?: string; signal?: AbortSignal;
    };
    const values = Object.entries(query).filter(([, value]) => value !== undefined).map(([key, value]) => [key, String(value)]);
    const address = this.url + path.replace(/\{(\w+)\}/g, (_, key: string) => encodeURIComponent(names[key] ?? "")) +
      (values.length > 0 ? "?" + new URLSearchParams(values) : "");
    const headers: Record<string, string> = {};
    if (this.key) headers["Authorization"] = `Bearer ${this.key}`;
    if (body !== undefined) headers["Content-Type"] = "application/json";
    if (repeat === "keyed") headers["Idempotency-Key"] = idempotencyKey ?? crypto.randomUUID();
    for (let attempt = 1; ; attempt++) {
      try {
        const limits = [signal, isStream ? undefined : AbortSignal.timeout(this.options.timeout)].filter((s) => s !== undefined);
        const response = await this.options.fetch(address, { method, headers, body: JSON.stringify(body), signal: AbortSignal.any(limits) });
        if (response.status >= 300) throw new MtagdError(response, await response.text());
        return await read(response);
      } catch (error) {
        let again = (repeat as string) !== "once";
        let after = 0;
        if (error instanceof MtagdError) {
          error.attempts = attempt;
          again = error.status === 429 || (again && mayPass(error.status));
          after = error.retryAfter * 1000;
        }
        if (!again || attempt >= this.options.attempts || signal?.aborted) throw error;
        await this.wait(attempt, after, signal);
      }
    }
  }

  private wait(attempt: number, after: number, signal?: AbortSignal): Promise<void> {
    const longest = Math.min(this.options.backoff * 2 ** (attempt - 1), maxWait);
    return new Promise((resolve, reject) => {
      const stop = () => { clearTimeout(timer); reject(signal?.reason); };
      const timer = setTimeout(() => { signal?.removeEventListener("abort", stop); resolve(); }, Math.max(after, (longest * (1 + Math.random())) / 2));
      signal?.addEventListener("abort", stop, { once: true });
      if (signal?.aborted) stop();
    });
  }
}

/** Lists the items of all pages. */
async function* all<T>(read: (page: number) => Promise<[items: T[], more: boolean]>): AsyncGenerator<T> {
  for (let page = 1, more = true; more; page++) {
    let items: T[];
    [items, more] = await read(page);
    yield* items;
  }
}
