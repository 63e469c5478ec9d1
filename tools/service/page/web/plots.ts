// The plots of a device: the last minutes of its sensors, by the server's time, with axes.

import { make, put } from "./dom.js";
import { clock, lasting, shown } from "./words.js";

export type Values = Record<string, number>;
export interface History { times: number[]; values: Record<string, (number | null)[]> }
const SPAN_S = 600; // of a plot; the server keeps as much
const GAP_S = 15; // a longer time without a value is a gap in the line
export interface Plot { key: string; title: string; unit: string; most?: (values: Values) => number | undefined }
export const PLOTS: Plot[] = [
  { key: "usage_ratio", title: "Load", unit: "ratio", most: () => 1 },
  { key: "memory_used_bytes", title: "Memory used", unit: "B", most: (values) => values["memory_total_bytes"] },
  { key: "temperature_celsius", title: "Temperature", unit: "°C" },
  { key: "power_watts", title: "Power", unit: "W" },
  { key: "clock_hertz", title: "Clock", unit: "Hz" },
];

export type Point = [time: number, value: number];
export const past = new Map<string, Map<string, Point[]>>(); // of plots, by card and key, oldest first
let latest = 0; // the server's time of the newest value

function add(name: string, key: string, time: number, value: number): void {
  let plots = past.get(name);
  if (plots === undefined) past.set(name, (plots = new Map<string, Point[]>()));
  const points = plots.get(key) ?? [];
  plots.set(key, points);
  if (time <= (points[points.length - 1]?.[0] ?? 0)) return; // told before
  points.push([time, value]);
  latest = Math.max(latest, time);
  while ((points[0]?.[0] ?? latest) < latest - SPAN_S) points.shift();
}

export function remember(name: string, time: number, values: Values): void {
  for (const { key } of PLOTS) {
    const value = values[key];
    if (value !== undefined) add(name, key, time, value);
  }
}

/** Put what the server has of the last minutes in front of what this page has seen. */
export function merge(found: Record<string, History>): void {
  const seen = new Map(past);
  past.clear();
  for (const [name, { times, values }] of Object.entries(found)) {
    for (const { key } of PLOTS) {
      times.forEach((time, number) => {
        const value = values[key]?.[number];
        if (typeof value === "number") add(name, key, time, value);
      });
    }
  }
  for (const [name, plots] of seen) for (const [key, points] of plots) for (const [time, value] of points) add(name, key, time, value);
}

const SVG = "http://www.w3.org/2000/svg";
function drawing(tag: string, attributes: Record<string, string>): SVGElement {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  return made;
}

export function makePlot(title: string): HTMLElement {
  const image = drawing("svg", { viewBox: "0 0 100 40", preserveAspectRatio: "none", role: "img" });
  image.append(drawing("path", { class: "grid", d: "M0,0H100M0,20H100M0,40H100M50,0V40" }), drawing("path", { class: "line" }));
  const frame = make("div", { class: "frame" }, make("span", { class: "top" }), make("span", { class: "low" }), image);
  const times = make("div", { class: "times" }, make("span"), make("span"), make("span"));
  return make("figure", { class: "plot" }, make("figcaption", {}, make("span", { class: "dim" }, title), make("span", { class: "value" })), frame, times);
}

/** A round number at or above the highest value: 1, 2 or 5 by a power of ten, or of two for bytes. */
function ceiling(value: number, unit: string): number {
  if (value <= 0) return 1;
  if (unit === "B") return 2 ** Math.ceil(Math.log2(value));
  const scale = 10 ** Math.floor(Math.log10(value));
  return scale * ([1, 2, 5].find((each) => each * scale >= value) ?? 10);
}

export function drawPlot(plot: Element, { title, unit }: Plot, points: Point[], most: number | undefined): void {
  const values = points.map(([, value]) => value);
  const last = values[values.length - 1] ?? 0;
  const low = Math.min(...values), high = Math.max(...values);
  const top = Math.max(most ?? 0, 0) || ceiling(high, unit);
  const text = most !== undefined && unit !== "ratio" ? `${shown(last, unit)} of ${shown(most, unit)}` : shown(last, unit);
  const image = plot.querySelector("svg"), line = plot.querySelector(".line");
  if (image === null || line === null) return;
  put(plot.querySelector(".value") as Element, text);
  put(plot.querySelector(".top") as Element, shown(top, unit));
  put(plot.querySelector(".low") as Element, shown(0, unit));
  const first = latest - SPAN_S;
  plot.querySelectorAll(".times span").forEach((each, number) => put(each, clock(new Date(1000 * (first + (number * SPAN_S) / 2)))));
  image.setAttribute("aria-label", `${title}: ${text}; from ${shown(low, unit)} to ${shown(high, unit)} in the last ${lasting(latest - (points[0]?.[0] ?? latest))}`);
  let before = -Infinity;
  const steps = points.map(([time, value]) => {
    const step = time - before > GAP_S ? "M" : "L";
    before = time;
    return `${step}${((100 * (time - first)) / SPAN_S).toFixed(2)},${(40 - 39 * Math.min(1, Math.max(0, value) / top)).toFixed(2)}`;
  });
  if (steps.length === 1) steps.push("h0.6");
  line.setAttribute("d", steps.join(""));
}
