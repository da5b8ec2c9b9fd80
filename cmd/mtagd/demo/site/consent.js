// Consent: the banner asks for the visitor's choice, the footer changes it. The init snippet reads it from localStorage.
'use strict';

{
  const banner = document.querySelector('[data-banner]');
  const change = document.querySelector('[data-change]');

  function show() {
    const chosen = localStorage.getItem('consent');
    banner.hidden = chosen !== null;
    document.querySelector('[data-chosen]').textContent =
      { yes: 'You have agreed to the tag.', no: 'You have declined the tag.' }[chosen] || 'You have not chosen yet.';
  }
  show();

  function apply() {
    mtag('consent', localStorage.getItem('consent') === 'yes');
    show();
  }

  for (const button of banner.querySelectorAll('[data-choose]')) {
    button.addEventListener('click', () => {
      localStorage.setItem('consent', button.dataset.choose);
      apply();
      change.focus({ preventScroll: true });
    });
  }
  change.addEventListener('click', () => {
    banner.hidden = false;
    banner.focus();
  });
  // The visitor has chosen in another tab.
  addEventListener('storage', ({ key }) => {
    if (key === 'consent') apply();
  });
}
