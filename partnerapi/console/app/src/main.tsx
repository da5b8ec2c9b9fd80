import { render } from "preact";
import { App } from "./app.tsx";
import { start } from "./route.ts";
import "uplot/dist/uPlot.min.css";
import "./style.css";

start();
render(<App />, document.getElementById("app")!);
