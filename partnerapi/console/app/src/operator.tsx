import { Heading } from "./ui.tsx";
export function Overview() { return <Heading title="Overview" />; }
export function Audit() { return <Heading title="Audit log" />; }
