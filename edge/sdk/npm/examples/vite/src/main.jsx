import './tag.js';
import { createRoot } from 'react-dom/client';
import { mtag } from '@mtagd/tag';

mtag('event', 'Rendered');

function Buy() {
  return <button onClick={() => { mtag('consent', true); mtag('event', 'Purchase', { value: 89, currency: 'EUR' }); }}>Buy</button>;
}

createRoot(document.getElementById('root')).render(<Buy />);
