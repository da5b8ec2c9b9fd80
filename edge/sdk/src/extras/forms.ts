// forms sends FormStart when a visitor first changes a form, and FormSubmit. It never reads the values of fields.

import { absolute, attribute, capture, send, start, text } from './extra';

start('forms', () => {
  const started = new WeakSet<Element>();

  capture(document, 'input', (event) => {
    const field = event.composedPath()[0] as any; // also inside open shadow roots
    const form: HTMLFormElement = field.form || field.closest && field.closest('form');
    if (!form || started.has(form)) return;
    started.add(form);
    send('FormStart', formFields(form));
    // Submit events do not leave a shadow root.
    if (form.getRootNode() != document) capture(form, 'submit', submitted);
  });
  capture(document, 'submit', submitted);
});

function submitted(event: Event) {
  const button: Element | null = (event as any).submitter;
  send('FormSubmit', Object.assign(
    formFields(event.target as Element, button),
    // The value of an <input type="submit"> is its label.
    button && { form_submit_text: button.localName == 'input' ? attribute(button, 'value') : text(button) },
  ));
}

// formFields are GA4's fields of a form. The button may have another address than the form.
function formFields(form: Element, button?: Element | null) {
  const to = absolute(button && attribute(button, 'formaction') || attribute(form, 'action') || location.href);
  return { form_id: attribute(form, 'id'), form_name: attribute(form, 'name'), form_destination: to && to.href };
}
