// The HTML that installs a tag, with the choice of consent.

import { useId, useState } from "preact/hooks";
import type { Tag } from "./api.ts";
import { Code } from "./ui.tsx";

export function Snippet({ tag }: { tag: Tag }) {
  const [consent, setConsent] = useState(false);
  const group = useId();
  const text = tag.snippet.replace("consent: false", `consent: ${consent}`).trim();
  return (
    <>
      <fieldset class="radios">
        <legend>When a page opens</legend>
        <label>
          <input type="radio" name={group} checked={!consent} onChange={() => setConsent(false)} />
          <span>
            <strong>Wait for the visitor's consent</strong>
            <small>
              Nothing is stored or sent until the shop's consent banner calls <code>mtag('consent', true)</code>
            </small>
          </span>
        </label>
        <label>
          <input type="radio" name={group} checked={consent} onChange={() => setConsent(true)} />
          <span>
            <strong>Consent is given</strong>
            <small>Only for pages that the visitor reaches after agreeing</small>
          </span>
        </label>
      </fieldset>
      <Code text={text} label="Snippet" what="snippet" />
      <p class="dim">Put it into the head of every page of the shop, before other scripts. A tag manager takes it as custom HTML.</p>
    </>
  );
}
