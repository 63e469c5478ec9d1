// The page of ugpud. It shows what /api/stream tells and asks for the rest when it is opened.
// Text of the daemon's is put into the document as text, never as markup.

type Values = Record<string, number>;
interface Brief { age_s: number; state: string; failure: string; queue_depth: number; launches: number; values: Values }
interface Past { failures: number; leases: number; mtbf_s: number | null; mttr_s: number | null }
interface Card {
  name: string; labels: string[]; state: string; resting: boolean; reason: string; memory: number;
  leases: number[]; served: number; trouble: string; troubles: Record<string, string>;
  history: Past; telemetry: Brief | null;
}
interface Lease { lease: number; device: string; kind: string; holder: string; held_s: number; left_s: number }
interface Waiter { device: string; kind: string; holder: string; priority: number; left_s: number }
interface Who { name: string; role: string; device: string }
interface State { cards: Card[]; leases: Lease[]; waiting: Waiter[]; who: Who }
interface Told { number: number; time: number; kind: string; level: string; text: string; remedy: string; fields: Record<string, string> }
interface Failure { error: string; message: string; remedy: string }
interface Sample { name: string; unit: string; value: number; label: string }
interface Unit { unit: string; name: string; ok: boolean; meaning: string; remedy: string }
interface Whole {
  name: string; trouble: string; facts: Record<string, string>; firmware: Unit[] | null;
  telemetry: { samples: Sample[] } | null;
}
interface Bundle { name: string; size: number; when: string; device: string; error: string; message: string }
interface Verdict { time: number; test: string; verdict: string; reason: string; devices: string | null }
interface Line { name: string; runs: number; bad: number }
interface Verdicts { configured: boolean; recent: Verdict[]; flaky: Line[]; weak: Line[] }

const POINTS = 120; // of a plot: two minutes
const EVENTS = 300; // lines that are kept
const SAID_MS = 8000;
interface Plot { key: string; title: string; unit: string; most?: (values: Values) => number | undefined }
const PLOTS: Plot[] = [
  { key: "usage_ratio", title: "Load", unit: "ratio", most: () => 1 },
  { key: "memory_used_bytes", title: "Memory", unit: "B", most: (values) => values["memory_total_bytes"] },
  { key: "temperature_celsius", title: "Temperature", unit: "°C" },
  { key: "power_watts", title: "Power", unit: "W" },
  { key: "clock_hertz", title: "Clock", unit: "Hz" },
];

function at<T extends HTMLElement = HTMLElement>(id: string): T {
  const found = document.getElementById(id);
  if (found === null) throw new Error(`no element ${id}`);
  return found as T;
}

type Child = Node | string;
function make(tag: string, properties: Record<string, string> = {}, ...children: Child[]): HTMLElement {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

function button(text: string, press: () => void, kind = ""): HTMLButtonElement {
  const made = make("button", { type: "button", class: kind }, text) as HTMLButtonElement;
  made.addEventListener("click", press);
  return made;
}

function put(element: Element, text: string): void {
  if (element.textContent !== text) element.textContent = text; // a reader is not told twice
}

/** Make the children of `parent` those of `items`, in order; elements of known keys stay, with their focus. */
function sync<T>(parent: Element, items: T[], key: (item: T) => string, create: (item: T) => Element, update: (element: Element, item: T) => void): void {
  const known = new Map<string, Element>();
  for (const child of [...parent.children]) known.set(child.getAttribute("data-key") ?? "", child);
  let before: Element | null = null;
  for (const item of items) {
    const name = key(item);
    let element = known.get(name);
    if (element === undefined) {
      element = create(item);
      element.setAttribute("data-key", name);
    }
    known.delete(name);
    update(element, item);
    const place: Element | null = before === null ? parent.firstElementChild : before.nextElementSibling;
    if (place !== element) parent.insertBefore(element, place);
    before = element;
  }
  for (const child of known.values()) child.remove();
}

const SCALES: [number, string][] = [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]];
function shown(value: number, unit: string): string {
  if (unit === "ratio") return `${Math.round(100 * value)} %`;
  if (unit === "flag") return value ? "yes" : "no";
  if (unit === "B") {
    let size = value;
    for (const name of ["B", "KiB", "MiB", "GiB"]) {
      if (size < 1024) return `${size < 10 && name !== "B" ? size.toFixed(1) : Math.round(size)} ${name}`;
      size /= 1024;
    }
    return `${size.toFixed(1)} TiB`;
  }
  if (unit === "Hz" || unit === "J" || unit === "B/s") {
    for (const [scale, prefix] of SCALES) if (value >= scale) return `${(value / scale).toFixed(2)} ${prefix}${unit}`;
  }
  const text = Number.isInteger(value) ? String(value) : value.toPrecision(3);
  return unit ? `${text} ${unit}` : text;
}

const counted = (count: number, what: string): string => `${count} ${what}${count === 1 ? "" : "s"}`;

function lasting(seconds: number): string {
  if (seconds < 90) return `${Math.round(seconds)} s`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
  return seconds < 172800 ? `${(seconds / 3600).toFixed(1)} h` : `${Math.round(seconds / 86400)} d`;
}

let saying = 0;
function say(text: string): void {
  put(at("said"), text);
  clearTimeout(saying);
  saying = window.setTimeout(() => put(at("said"), ""), SAID_MS);
}

class Refused extends Error {
  constructor(readonly status: number, readonly failure: Failure) {
    super(failure.message);
  }
}

async function request<T>(method: string, path: string, body?: object): Promise<T> {
  const options: RequestInit = { method, credentials: "same-origin" };
  if (body !== undefined) {
    options.headers = { "Content-Type": "application/json" };
    options.body = JSON.stringify(body);
  }
  const answer = await fetch(path, options);
  const found: unknown = await answer.json();
  if (!answer.ok) throw new Refused(answer.status, found as Failure);
  return found as T;
}

/** Tell what went wrong; a session that is over leads to the login. */
function complain(error: unknown): void {
  if (error instanceof Refused) {
    if (error.status === 401) return logIn(error.failure.message);
    say(error.failure.remedy ? `${error.message}. Try: ${error.failure.remedy}` : error.message);
  } else {
    say("ugpud does not answer");
  }
}

// ---- devices ---------------------------------------------------------------------------------

let state: State | null = null;
const past = new Map<string, Map<string, number[]>>(); // of plots, by card and key

function remember(card: Card): void {
  if (card.telemetry === null) return;
  let plots = past.get(card.name);
  if (plots === undefined) past.set(card.name, (plots = new Map()));
  for (const { key } of PLOTS) {
    const value = card.telemetry.values[key];
    if (value === undefined) continue;
    const points = plots.get(key) ?? [];
    points.push(value);
    if (points.length > POINTS) points.shift();
    plots.set(key, points);
  }
}

const SVG = "http://www.w3.org/2000/svg";
function makePlot(title: string): HTMLElement {
  const image = document.createElementNS(SVG, "svg");
  image.setAttribute("viewBox", "0 0 100 20");
  image.setAttribute("preserveAspectRatio", "none");
  image.setAttribute("role", "img");
  image.append(document.createElementNS(SVG, "polyline"));
  return make("p", { class: "plot" }, make("span", { class: "dim" }, `${title} `), make("span", { class: "value" }), image);
}

function drawPlot(plot: Element, { title, unit }: Plot, points: number[], most: number | undefined): void {
  const last = points[points.length - 1] ?? 0;
  const low = Math.min(...points), high = Math.max(...points);
  const top = Math.max(most ?? high, 1e-9);
  const text = most !== undefined && unit !== "ratio" ? `${shown(last, unit)} of ${shown(most, unit)}` : shown(last, unit);
  const image = plot.querySelector("svg"), line = plot.querySelector("polyline"), value = plot.querySelector(".value");
  if (image === null || line === null || value === null) return;
  put(value, text);
  image.setAttribute("aria-label", `${title}: ${text}; from ${shown(low, unit)} to ${shown(high, unit)} in the last ${lasting(points.length)}`);
  const place = (point: number, number: number): string =>
    `${(100 * (number + POINTS - points.length)) / (POINTS - 1)},${19 - (18 * Math.max(0, point)) / top}`;
  line.setAttribute("points", points.map(place).join(" "));
}

function makeCard(card: Card): Element {
  const name = button(card.name, () => view(card.name), "name");
  return make("li", {}, make("div", { class: "head" }, name), make("p", { class: "line" }, make("span", { class: "state" }), make("span", { class: "who" })),
    make("p", { class: "why" }), make("p", { class: "trouble" }), make("div", { class: "plots" }), make("p", { class: "dim past" }));
}

function stateOf(card: Card): string {
  return card.resting ? `${card.state}, resting` : card.state;
}

function fillCard(element: Element, card: Card): void {
  element.className = `card ${card.state}`;
  const part = (name: string): Element => element.querySelector(`.${name}`) as Element;
  put(part("state"), stateOf(card));
  const held = state?.leases.filter((each) => each.device === card.name).map((each) => each.holder) ?? [];
  put(part("who"), held.length ? ` by ${held.join("; ")}` : ` ${card.labels.filter((each) => each !== card.name).join(", ")}`);
  put(part("why"), card.reason);
  const brief = card.telemetry;
  const troubles = Object.values(card.troubles);
  if (card.trouble) troubles.push(`history: ${card.trouble}`);
  if (brief?.failure) troubles.push(brief.failure);
  if (brief && brief.age_s > 10 && card.state !== "off") troubles.push(`no telemetry for ${lasting(brief.age_s)}`);
  put(part("trouble"), troubles.join("; "));
  const plots = past.get(card.name);
  const drawn = PLOTS.filter((each) => plots?.has(each.key));
  sync(part("plots"), drawn, (each) => each.key, (each) => makePlot(each.title),
    (plot, each) => drawPlot(plot, each, plots?.get(each.key) ?? [], each.most?.(brief?.values ?? {})));
  const known = card.history;
  const facts = [counted(card.served, "lease"), counted(known.failures, "failure")];
  if (known.mtbf_s !== null) facts.push(`every ${lasting(known.mtbf_s)}`);
  if (known.mttr_s !== null) facts.push(`mended in ${lasting(known.mttr_s)}`);
  if (brief && brief.queue_depth) facts.push(`${counted(brief.queue_depth, "submission")} under way`);
  put(part("past"), facts.join(", "));
}

function show(found: State): void {
  state = found;
  found.cards.forEach(remember);
  put(at("who"), `${found.who.name} (${found.who.role})`);
  const counts = new Map<string, number>();
  for (const card of found.cards) counts.set(card.state, (counts.get(card.state) ?? 0) + 1);
  put(at("summary"), [...counts].map(([name, count]) => `${count} ${name}`).join(", "));
  sync(at("cards"), found.cards, (card) => card.name, makeCard, fillCard);
  showLeases(found);
  showActions();
}

function showLeases(found: State): void {
  type Row = { key: string; cells: string[]; lease: number };
  const rows: Row[] = found.leases.map((each) => ({
    key: `lease ${each.lease}`, lease: each.lease,
    cells: [each.device, each.holder, each.kind, lasting(each.held_s), lasting(each.left_s)],
  }));
  found.waiting.forEach((each, number) => rows.push({
    key: `waits ${number} ${each.holder}`, lease: 0,
    cells: [each.device, each.holder, `${each.kind}, waits (priority ${each.priority})`, "", lasting(each.left_s)],
  }));
  at("no-leases").hidden = rows.length > 0;
  sync(at("leases"), rows, (row) => row.key,
    (row) => {
      const made = make("tr", {}, ...row.cells.map(() => make("td")), make("td"));
      if (row.lease && found.who.role === "admin") {
        const press = (): void => ask(`End lease ${row.lease} of ${row.cells[1]} on ${row.cells[0]}? Its work is stopped.`, "End lease", false,
          () => request("POST", `/api/leases/${row.lease}/release`, {}));
        made.lastElementChild?.append(button("End", press, "danger"));
      }
      return made;
    },
    (element, row) => row.cells.forEach((text, number) => put(element.children[number] as Element, text)));
}

// ---- one device ------------------------------------------------------------------------------

let viewed = "";
function view(name: string): void {
  viewed = name;
  for (const part of ["view-sensors", "view-firmware", "view-facts"]) at(part).replaceChildren();
  put(at("view-name"), name);
  const dialog = at<HTMLDialogElement>("view");
  if (!dialog.open) dialog.showModal();
  showActions();
  void refresh();
}

async function refresh(): Promise<void> {
  const name = viewed;
  try {
    const found = await request<Whole>("GET", `/api/cards/${encodeURIComponent(name)}`);
    if (name !== viewed) return;
    const samples = found.telemetry?.samples ?? [];
    rows("view-sensors", samples.map((one) => [one.label ? `${one.name}, ${one.label}` : one.name, shown(one.value, one.unit)]), found.trouble || "The device tells no sensors.");
    rows("view-facts", Object.entries(found.facts), "The device is not open.");
    const units = found.firmware ?? [];
    rows("view-firmware", units.map((one) => [one.unit, one.name, one.ok ? one.meaning : `${one.meaning} Try: ${one.remedy}`]), "This driver tells no states.");
    units.forEach((one, number) => at("view-firmware").children[number]?.children[1]?.classList.add(one.ok ? "ok" : "wrong"));
  } catch (error) {
    complain(error);
  }
}

function rows(id: string, lines: string[][], empty: string): void {
  const given = lines.length ? lines : [[empty]];
  at(id).replaceChildren(...given.map((cells) => make("tr", {}, ...cells.map((text) => make("td", {}, text)))));
}

function showActions(): void {
  const card = state?.cards.find((each) => each.name === viewed);
  if (card === undefined || !at<HTMLDialogElement>("view").open) return;
  put(at("view-state"), card.reason ? `${card.state}: ${card.reason}` : stateOf(card));
  const path = `/api/cards/${encodeURIComponent(card.name)}`;
  const actions: [string, boolean, () => void][] = [
    ["Refresh", true, () => void refresh()],
    ["Reset", card.state === "ready", () => ask(`Reset ${card.name}? What it holds is lost.`, "Reset", false, () => request("POST", `${path}/reset`, {}))],
    ["Quarantine", card.state !== "off", () => ask(`Take ${card.name} out of use? Its leases end.`, "Quarantine", true, (reason) => request("POST", `${path}/quarantine`, { reason }))],
    ["Try again", card.state === "quarantined", () => ask(`Have ${card.name} recovered and leased again?`, "Try again", false, () => request("POST", `${path}/recover`, {}))],
  ];
  const allowed = state?.who.role === "admin" ? actions : actions.slice(0, 1);
  sync(at("view-actions"), allowed, ([text]) => text, ([text, , press]) => button(text, press, text === "Refresh" ? "" : "danger"),
    (element, [, enabled]) => { (element as HTMLButtonElement).disabled = !enabled; });
}

// ---- questions -------------------------------------------------------------------------------

let answered: ((reason: string) => Promise<unknown>) | null = null;
function ask(text: string, yes: string, reasoned: boolean, act: (reason: string) => Promise<unknown>): void {
  answered = act;
  put(at("ask-text"), text);
  put(at("ask-yes"), yes);
  at("ask-label").hidden = at("ask-reason").hidden = !reasoned;
  at<HTMLInputElement>("ask-reason").value = "";
  const dialog = at<HTMLDialogElement>("ask");
  if (!dialog.open) dialog.showModal();
}

async function answer(): Promise<void> {
  const act = answered;
  answered = null;
  at<HTMLDialogElement>("ask").close();
  if (act === null) return;
  try {
    await act(at<HTMLInputElement>("ask-reason").value);
  } catch (error) {
    complain(error);
  }
}

// ---- events, bundles, verdicts ---------------------------------------------------------------

function tell(told: Told): void {
  at("no-events").hidden = true;
  const when = new Date(1000 * told.time);
  const made = make("li", { class: told.level }, make("time", { datetime: when.toISOString() }, when.toLocaleTimeString()), make("span", { class: "kind" }, told.kind), told.text);
  if (told.remedy && !told.text.includes(told.remedy)) made.append(make("span", { class: "dim" }, ` ${told.remedy}`));
  const list = at("events");
  list.prepend(made);
  while (list.children.length > EVENTS) list.lastElementChild?.remove();
}

async function showBundles(): Promise<void> {
  try {
    const found = await request<Bundle[]>("GET", "/api/bundles");
    const admin = state?.who.role === "admin";
    put(at("bundles-note"), found.length ? "ugpu crash show reads one." : "No failure has left a bundle.");
    at("bundles").replaceChildren(...found.map((each) => {
      const link = admin ? make("a", { href: `/api/bundles/${encodeURIComponent(each.name)}`, download: each.name }, each.name) : each.name;
      return make("tr", {}, ...[each.when, each.device, `${each.error} ${each.message}`, shown(each.size, "B"), link].map((cell) => make("td", {}, cell)));
    }));
  } catch (error) {
    complain(error);
  }
}

async function showVerdicts(): Promise<void> {
  try {
    const found = await request<Verdicts>("GET", "/api/verdicts");
    const worst = (lines: Line[]): string => lines.slice(0, 5).map((each) => `${each.name} (${each.bad} of ${each.runs})`).join(", ") || "none";
    put(at("verdicts-note"), found.configured ? `Flaky tests: ${worst(found.flaky)}. Devices that were sick: ${worst(found.weak)}.` : "No history is configured: verdicts in [page] of ugpud.toml.");
    rows("verdicts", found.recent.map((each) => [new Date(1000 * each.time).toLocaleString(), each.test, each.verdict, each.devices ?? "", each.reason]), "No verdicts.");
  } catch (error) {
    complain(error);
  }
}

// ---- life ------------------------------------------------------------------------------------

let stream: EventSource | null = null;
function watch(): void {
  stream?.close();
  const made = (stream = new EventSource("/api/stream"));
  made.addEventListener("open", () => {
    put(at("link"), "live");
    at("login").hidden = true;
    at("fleet").hidden = at("leave").hidden = false;
  });
  made.addEventListener("state", (message) => show(JSON.parse(message.data as string) as State));
  made.addEventListener("event", (message) => tell(JSON.parse(message.data as string) as Told));
  made.addEventListener("end", (message) => {
    made.close();
    logIn((JSON.parse(message.data as string) as Failure).message);
  });
  made.addEventListener("error", () => {
    put(at("link"), "not connected");
    if (made.readyState !== EventSource.CLOSED || made !== stream) return; // the browser tries again
    request<State>("GET", "/api/state").then(() => window.setTimeout(watch, 2000), (error: unknown) => {
      if (error instanceof Refused && error.status === 401) complain(error);
      else window.setTimeout(watch, 2000);
    });
  });
}

function logIn(why: string): void {
  stream?.close();
  stream = null;
  for (const dialog of document.querySelectorAll("dialog")) dialog.close();
  put(at("link"), "");
  put(at("who"), "");
  at("fleet").hidden = at("leave").hidden = true;
  at("login").hidden = false;
  put(at("login-error"), why === "not logged in" ? "" : why);
  at("token").focus();
}

async function enter(event: SubmitEvent): Promise<void> {
  event.preventDefault();
  const token = at<HTMLInputElement>("token");
  try {
    await request<Who>("POST", "/api/session", { token: token.value.trim() });
    token.value = "";
    at("events").replaceChildren();
    watch();
  } catch (error) {
    put(at("login-error"), error instanceof Refused ? error.message : "ugpud does not answer");
  }
}

at<HTMLFormElement>("login").addEventListener("submit", (event) => void enter(event));
at("leave").addEventListener("click", () => {
  request("DELETE", "/api/session").then(() => logIn(""), complain);
});
at<HTMLFormElement>("ask-form").addEventListener("submit", (event) => {
  event.preventDefault();
  void answer();
});
at("ask-no").addEventListener("click", () => at<HTMLDialogElement>("ask").close());
at("view").addEventListener("close", () => { viewed = ""; });
at<HTMLSelectElement>("level").addEventListener("change", (event) => {
  at("events").className = `level-${(event.target as HTMLSelectElement).value}`;
});
at<HTMLDetailsElement>("bundles-part").addEventListener("toggle", () => {
  if (at<HTMLDetailsElement>("bundles-part").open) void showBundles();
});
at<HTMLDetailsElement>("verdicts-part").addEventListener("toggle", () => {
  if (at<HTMLDetailsElement>("verdicts-part").open) void showVerdicts();
});
watch();
