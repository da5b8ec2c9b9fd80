import { Buy } from './buy.js';

export default function Page() {
  return <Buy />;
}
