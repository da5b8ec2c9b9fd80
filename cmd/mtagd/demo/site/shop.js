// The shop: it keeps the cart in localStorage, and sends an event for each step.
'use strict';

const products = JSON.parse(document.getElementById('products').textContent);
const currency = 'EUR';
const money = (amount) => new Intl.NumberFormat('en-IE', { style: 'currency', currency }).format(amount);
const find = (selector, within = document) => within.querySelector(selector);
const read = (key) => JSON.parse(localStorage.getItem(key) || 'null');
const keep = (key, value) => localStorage.setItem(key, JSON.stringify(value));

// A cart is a list of { id, glaze, quantity }.
const cart = () => read('cart') || [];

// The Product object of a line, for events.
function product(line) {
  const { id, name, category, price } = products.find((p) => p.id === line.id);
  return { id, name, category, price, quantity: line.quantity };
}

// The fields value, currency and products of an event about some lines.
function sale(lines) {
  const bought = lines.map(product);
  const value = bought.reduce((sum, p) => sum + p.price * p.quantity, 0);
  return { value: Math.round(value * 100) / 100, currency, products: bought };
}

function showCount() {
  find('[data-cart-count]').textContent = cart().reduce((sum, line) => sum + line.quantity, 0);
}

// Standard delivery is free for orders of 80 or more.
function shippingOf(value) {
  const express = find('[name=tier][value=express]');
  if (express && express.checked) return 9.9;
  return value >= 80 ? 0 : 4.9;
}

function showSum() {
  const { value } = sale(cart());
  const shipping = shippingOf(value);
  find('[data-value]').textContent = money(value);
  find('[data-shipping]').textContent = shipping ? money(shipping) : 'free';
  find('[data-total-sum]').textContent = money(value + shipping);
  return { ...sale(cart()), shipping_cost: shipping, tax: Math.round((value + shipping) * 0.19 / 1.19 * 100) / 100 };
}

const pages = {
  home() {
    const term = new URLSearchParams(location.search).get('q');
    if (term) mtag('event', 'Search', { search_term: term });
    else mtag('event', 'ViewContent');
  },

  product() {
    const article = find('[data-product]');
    const line = () => ({
      id: article.dataset.product,
      glaze: find('[name=glaze]:checked').value,
      quantity: Math.max(1, Number(find('[name=quantity]').value) || 1),
    });
    mtag('event', { type: 'ViewItem', content_event: 'product', ...sale([{ ...line(), quantity: 1 }]) });
    article.addEventListener('change', () => {
      article.className = 'product glaze-' + line().glaze;
    });
    find('[data-add]').addEventListener('click', (click) => {
      const added = line();
      const lines = cart();
      const same = lines.find((l) => l.id === added.id && l.glaze === added.glaze);
      if (same) same.quantity += added.quantity;
      else lines.push(added);
      keep('cart', lines);
      mtag('event', 'AddToCart', sale([added]));
      showCount();
      const count = find('[data-cart-count]');
      count.classList.remove('bump');
      requestAnimationFrame(() => count.classList.add('bump'));
      click.target.textContent = 'Added';
      setTimeout(() => (click.target.textContent = 'Add to cart'), 1500);
    });
    find('[data-wish]').addEventListener('click', ({ target }) => {
      const wished = target.getAttribute('aria-pressed') !== 'true';
      target.setAttribute('aria-pressed', wished);
      target.textContent = wished ? '♥' : '♡';
      if (wished) mtag('event', 'AddToWishlist', sale([line()]));
    });
  },

  cart() {
    const show = () => {
      const lines = cart();
      find('[data-lines]').replaceChildren(...lines.map((line) => {
        const item = find('#line').content.cloneNode(true);
        const { name, price } = product(line);
        find('li', item).className = 'glaze-' + line.glaze;
        find('figure', item).append(find(`[data-drawing=${line.id}]`).content.cloneNode(true));
        find('h3', item).textContent = name;
        find('p', item).textContent = `${line.glaze} · ${line.quantity} × ${money(price)}`;
        find('b', item).textContent = money(price * line.quantity);
        find('button', item).addEventListener('click', () => {
          keep('cart', cart().filter((l) => l.id !== line.id || l.glaze !== line.glaze));
          mtag('event', 'RemoveFromCart', sale([line]));
          show();
        });
        return item;
      }));
      find('[data-sum]').hidden = lines.length === 0;
      find('[data-nothing]').hidden = lines.length > 0;
      showSum();
      showCount();
    };
    show();
    mtag('event', 'ViewCart', sale(cart()));
  },

  checkout() {
    const lines = cart();
    if (lines.length === 0) {
      find('.two').hidden = true;
      find('[data-nothing]').hidden = false;
      return;
    }
    find('[data-brief]').replaceChildren(...lines.map((line) => {
      const { name, price } = product(line);
      const item = document.createElement('li');
      item.append(`${line.quantity} × ${name}`, Object.assign(document.createElement('span'), { textContent: money(price * line.quantity) }));
      return item;
    }));
    mtag('event', 'BeginCheckout', showSum());
    const form = find('[data-checkout]');
    find('[data-tier]').addEventListener('change', () => {
      showSum();
      mtag('event', 'AddShippingInfo', { shipping_tier: form.tier.value, ...sale(lines) });
    });
    find('[data-payment]').addEventListener('change', () => {
      mtag('event', 'AddPaymentInfo', { payment_event: form.payment.value, ...sale(lines) });
    });
    form.addEventListener('submit', (submit) => {
      submit.preventDefault();
      const transaction_id = 'T' + Date.now().toString(36).toUpperCase();
      mtag('identify', { email: form.email.value });
      keep('order', { ...showSum(), transaction_id, email: form.email.value });
      localStorage.removeItem('cart');
      location.href = '/demo/thank-you';
    });
  },

  // The Purchase event of an order is sent once, even if the page is loaded again.
  'thank-you'() {
    const order = read('order');
    if (!order) return;
    find('[data-order]').textContent = `Order ${order.transaction_id} for ${money(order.value + order.shipping_cost)} is on its way to the kiln.`;
    const { reported, ...fields } = order;
    if (!reported) {
      mtag('event', 'Purchase', fields);
      keep('order', { ...order, reported: true });
    }
    const refund = find('[data-refund]');
    refund.hidden = false;
    refund.addEventListener('click', () => {
      const { value, products: returned, transaction_id } = order;
      mtag('event', 'Refund', { value, currency, products: returned, transaction_id });
      localStorage.removeItem('order');
      refund.hidden = true;
    });
  },
};

showCount();
pages[document.body.dataset.page]();
