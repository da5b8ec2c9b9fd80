// Hidden is what is left out: fields by their names, and parts of texts.
export type Hidden = [names: RegExp, texts: RegExp];

// hider returns a replacer for JSON.stringify that leaves something out. Old versions of Prototype.js add a toJSON to arrays,
// which would render them as strings: this[name] is the array before that. In a URL, what is left of the query begins with a
// question mark again.
export const hider = (hidden?: Hidden) => function (this: any, name: string, text: any) {
  if (hidden && hidden[0].test(name)) return;
  if (Array.isArray(this[name])) return this[name];
  if (!hidden || name == 'event_id') return text;
  const rest = typeof text == 'string' ? text.replace(hidden[1], '') : text;
  return rest == text ? text : rest.replace(/^(\w+:[^?#&]*)&/, '$1?');
};
