// JSON as a tree that opens and closes.

export function JSONTree({ value, name, open = true }: { value: unknown; name?: string; open?: boolean }) {
  const label = name === undefined ? null : <span class="key">{name}: </span>;
  if (value === null || typeof value !== "object") {
    return (
      <div class="leaf">
        {label}
        <span class={value === null ? "null" : typeof value}>{JSON.stringify(value)}</span>
      </div>
    );
  }
  const list = Array.isArray(value);
  const entries = Object.entries(value);
  if (entries.length === 0) {
    return (
      <div class="leaf">
        {label}
        {list ? "[]" : "{}"}
      </div>
    );
  }
  return (
    <details class="node" open={open}>
      <summary>
        {label}
        <span class="dim">{list ? `[${entries.length}]` : `{${entries.length}}`}</span>
      </summary>
      {entries.map(([key, item]) => (
        <JSONTree key={key} name={key} value={item} open={entries.length < 30} />
      ))}
    </details>
  );
}
