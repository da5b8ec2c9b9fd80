// names understands calls of mtag('event', …) in the words of GA4: purchase, items, shipping.

import { part } from './extra';
import { eventName, fieldsOf, isKnown } from './gtag';

part('names', (commands, kit) => {
  const { event } = commands;
  commands.event = (name: any, fields: any, recorded: any) => {
    if (typeof name == 'object') [name, fields, recorded] = [name.event || name.type, name, fields];
    if (name && /^[a-z]\w*$/.test(name)) {
      const known = fields && isKnown(name) ? fieldsOf(name, fields) : {};
      if (known.event_id == undefined) delete known.event_id;
      fields = Object.assign({}, fields, known, { type: undefined });
      if (isKnown(name)) for (const theirs of ['items', 'shipping', 'payment_type']) delete fields[theirs];
      if (kit.trace_) kit.trace_('GA4 calls it', name + ', sent as', eventName(name));
      name = eventName(name);
    }
    event(name, fields, recorded);
  };
});
