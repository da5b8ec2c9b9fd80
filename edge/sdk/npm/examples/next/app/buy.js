'use client';
import { mtag } from '@mtagd/tag';

mtag('event', 'Rendered');

export function Buy() {
  return <button onClick={() => { mtag('consent', true); mtag('event', 'Purchase', { value: 89, currency: 'EUR' }); }}>Buy</button>;
}
