// Hidden is what to leave out: a pattern for names of fields, and one for parts of strings.
export type Hidden = [names: RegExp, texts: RegExp];

// hider returns a replacer for JSON.stringify that leaves out what is hidden. Old versions of Prototype.js add a toJSON to
// arrays, which would render them as strings: this[name] is the array before toJSON. If the first parameter of a URL is
// removed, the rest of the query gets its question mark back.
export const hider = (hidden?: Hidden) => function (this: any, name: string, text: any) {
  if (hidden && hidden[0].test(name)) return;
  if (Array.isArray(this[name])) return this[name];
  if (!hidden || name == 'event_id') return text;
  const rest = typeof text == 'string' ? text.replace(hidden[1], '') : text;
  return rest == text ? text : rest.replace(/^(\w+:[^?#&]*)&/, '$1?');
};
