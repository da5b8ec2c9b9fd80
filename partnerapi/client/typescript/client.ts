// A client of the partner API and of the tag hosts. schema.ts is generated from the OpenAPI document of the service; the reference
// page under /v1/docs explains every request.
import createClient from "openapi-fetch";
import type { components, paths } from "./schema";

/** The types of bodies, such as Schemas["Merchant"]. */
export type Schemas = components["schemas"];

/**
 * Returns a client of a server: the base host with your API key, or a tag host with a secret of the merchant. A tag host needs no
 * key. Each method returns `data` after a success, or else `error`; it throws only when there is no answer.
 */
export function newClient(url: string, key?: string) {
  return createClient<paths>({ baseUrl: url, headers: key ? { Authorization: `Bearer ${key}` } : {} });
}
