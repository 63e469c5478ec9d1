// The page of ugpud. It shows what /api/stream tells and asks for the rest when it is opened.
// Text of the daemon's is put into the document as text, never as markup.

import { at, button, make, put, sync, type Child } from "./dom.js";
import { drawPlot, makePlot, merge, past, PLOTS, remember, type History, type Values } from "./plots.js";
import { counted, lasting, sensorRows, shown, stamp, stampOf, words, type Sample } from "./words.js";

interface Brief { time: number; errors: number; resets: number; age_s: number; state: string; failure: string; queue_depth: number; launches: number; values: Values }
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
interface Unit { unit: string; name: string; ok: boolean; meaning: string; remedy: string }
interface Whole {
  name: string; trouble: string; facts: Record<string, string>; firmware: Unit[] | null;
  telemetry: { samples: Sample[] } | null;
}
interface Bundle { name: string; size: number; when: string; device: string; error: string; message: string; card: string }
interface Verdict { time: number; test: string; verdict: string; reason: string; devices: string | null }
interface Line { name: string; runs: number; bad: number }
interface Verdicts { configured: boolean; recent: Verdict[]; flaky: Line[]; weak: Line[] }

const EVENTS = 300; // lines that are kept
const SAID_MS = 8000;
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
// ---- what is looked for ------------------------------------------------------------------------

/** Whether the search and the chosen device let this through. */
function wanted(device: string, text: string): boolean {
  const chosen = at<HTMLSelectElement>("device").value;
  const looked = at<HTMLInputElement>("search").value.trim().toLowerCase();
  if (chosen && device !== chosen) return false;
  const whole = `${device} ${text}`.toLowerCase();
  return looked.split(/\s+/).every((word) => whole.includes(word));
}

function showDevices(found: State): void {
  const select = at<HTMLSelectElement>("device");
  const chosen = select.value;
  const names = found.cards.map((card) => card.name);
  sync(select, ["", ...names], (name) => name, (name) => make("option", { value: name, label: name || "all devices" }), () => undefined);
  select.value = names.includes(chosen) ? chosen : "";
}

function look(): void {
  if (state !== null) show(state);
  for (const each of at("events").children) filterEvent(each as HTMLElement);
}

function filterEvent(element: HTMLElement): void {
  element.hidden = !wanted(element.dataset["device"] ?? "", element.textContent ?? "");
}

async function recall(): Promise<void> {
  merge(await request<Record<string, History>>("GET", "/api/history"));
  if (state !== null) show(state);
}

function makeCard(card: Card): Element {
  const name = button(card.name, () => view(card.name), "name");
  return make("li", {}, make("div", { class: "head" }, name), make("p", { class: "line" }, make("span", { class: "state" }), make("span", { class: "who" })),
    make("p", { class: "why" }), make("p", { class: "trouble" }), make("div", { class: "plots" }), make("p", { class: "dim past" }), make("p", { class: "evidence" }));
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
  if (brief && brief.errors) facts.push(`${counted(brief.errors, "fault")} since it was opened`);
  if (brief && brief.resets) facts.push(counted(brief.resets, "reset"));
  put(part("past"), facts.join(", "));
  const own = bundlesOf(card.name).length;
  const texts = own ? [`${counted(own, "bundle")} of evidence`] : [];
  sync(part("evidence"), texts, () => "bundles", (text) => button(text, () => view(card.name), "link"), put);
}

function show(found: State): void {
  state = found;
  for (const { name, telemetry } of found.cards) if (telemetry !== null) remember(name, telemetry.time, telemetry.values);
  put(at("who"), `${found.who.name} (${found.who.role})`);
  const counts = new Map<string, number>();
  for (const card of found.cards) counts.set(card.state, (counts.get(card.state) ?? 0) + 1);
  put(at("summary"), [...counts].map(([name, count]) => `${count} ${name}`).join(", "));
  showDevices(found);
  const held = (name: string): string => found.leases.filter((each) => each.device === name).map((each) => each.holder).join(" ");
  const cards = found.cards.filter((card) => wanted(card.name, `${stateOf(card)} ${card.labels.join(" ")} ${card.reason} ${held(card.name)}`));
  at("no-cards").hidden = cards.length > 0;
  sync(at("cards"), cards, (card) => card.name, makeCard, fillCard);
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
  const names = ["Device", "Holder", "Kind", "Held", "Left"];
  sync(at("leases"), rows.filter((row) => wanted(row.cells[0] ?? "", row.cells.join(" "))), (row) => row.key,
    (row) => {
      const made = make("tr", {}, ...names.map((name) => make("td", { "data-name": name })), make("td"));
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
  for (const part of ["view-bundles", "view-sensors", "view-firmware", "view-facts"]) at(part).replaceChildren();
  put(at("view-name"), name);
  const dialog = at<HTMLDialogElement>("view");
  if (!dialog.open) dialog.showModal();
  showActions();
  showOwnBundles();
  void refresh();
}

async function refresh(): Promise<void> {
  const name = viewed;
  try {
    const found = await request<Whole>("GET", `/api/cards/${encodeURIComponent(name)}`);
    if (name !== viewed) return;
    const samples = found.telemetry?.samples ?? [];
    rows("view-sensors", sensorRows(samples), found.trouble || "The device tells no sensors.");
    rows("view-facts", Object.entries(found.facts).map(([name, value]) => [words(name), value]), "The device is not open.");
    const units = found.firmware ?? [];
    rows("view-firmware", units.map((one) => [one.unit, one.name, one.ok ? one.meaning : `${one.meaning} Try: ${one.remedy}`]), "This driver tells no states.");
    units.forEach((one, number) => at("view-firmware").children[number]?.children[1]?.classList.add(one.ok ? "ok" : "wrong"));
  } catch (error) {
    complain(error);
  }
}

/** Fill a table. names: of its columns, which a narrow screen shows beside each cell. */
function rows(id: string, lines: Child[][], empty: string, names: string[] = []): void {
  const given = lines.length ? lines : [[empty]];
  const named = (number: number): Record<string, string> => {
    const name = lines.length ? names[number] : undefined;
    return name === undefined ? {} : { "data-name": name };
  };
  at(id).replaceChildren(...given.map((cells) => make("tr", {}, ...cells.map((cell, number) => make("td", named(number), cell)))));
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
  const allowed = state?.who.role === "admin" ? actions.slice(1) : [];
  const fill = (element: Element, [, enabled]: [string, boolean, () => void]): void => { (element as HTMLButtonElement).disabled = !enabled; };
  sync(at("view-actions"), ["harmless", "danger"].filter((each) => each === "harmless" || allowed.length), (each) => each,
    (each) => make("span", { class: each === "danger" ? "apart" : "", ...(each === "danger" ? { role: "group", "aria-label": "Actions that stop work" } : {}) }),
    (element, each) => sync(element, each === "danger" ? allowed : actions.slice(0, 1), ([text]) => text,
      ([text, , press]) => button(text, press, each === "danger" ? "danger" : ""), fill));
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
  const device = told.fields["device"] ?? "";
  const made = make("li", { class: told.level, "data-device": device }, make("time", { datetime: when.toISOString() }, stamp(when)), make("span", { class: "kind" }, told.kind), told.text);
  const more = [];
  if (told.fields["kernel"]) more.push(`kernel ${told.fields["kernel"]}`);
  if (told.remedy && !told.text.includes(told.remedy)) more.push(`try: ${told.remedy}`);
  if (more.length) made.append(make("span", { class: "dim more" }, more.join("; ")));
  filterEvent(made);
  if (told.level !== "info") queueBundles();
  const list = at("events");
  list.prepend(made);
  while (list.children.length > EVENTS) list.lastElementChild?.remove();
}

let bundles: Bundle[] = [];
const bundlesOf = (name: string): Bundle[] => bundles.filter((each) => each.card === name);

let asking = 0;
/** Ask for the bundles soon: failures come with several events. */
function queueBundles(): void {
  clearTimeout(asking);
  asking = window.setTimeout(() => void showBundles(), 1000);
}

function bundleLink(each: Bundle): Child {
  if (state?.who.role !== "admin") return each.name;
  return make("a", { href: `/api/bundles/${encodeURIComponent(each.name)}`, download: each.name }, each.name);
}

async function showBundles(): Promise<void> {
  try {
    bundles = await request<Bundle[]>("GET", "/api/bundles");
  } catch (error) {
    return complain(error);
  }
  put(at("bundles-note"), bundles.length ? "ugpu crash show reads one." : "No failure has left a bundle.");
  const cells = (each: Bundle): Child[] => [stampOf(each.when), each.card || `${each.device} (not of this ugpud)`, `${each.error} ${each.message}`, shown(each.size, "B"), bundleLink(each)];
  rows("bundles", bundles.map(cells), "None.", ["When", "Device", "Error", "Size", "Bundle"]);
  showOwnBundles();
  if (state !== null) show(state);
}

function showOwnBundles(): void {
  const cells = (each: Bundle): Child[] => [stampOf(each.when), `${each.error} ${each.message}`, bundleLink(each)];
  rows("view-bundles", bundlesOf(viewed).map(cells), "No failure of this device has left a bundle.", ["When", "Error", "Bundle"]);
}

async function showVerdicts(): Promise<void> {
  try {
    const found = await request<Verdicts>("GET", "/api/verdicts");
    const worst = (lines: Line[]): string => lines.slice(0, 5).map((each) => `${each.name} (${each.bad} of ${each.runs})`).join(", ") || "none";
    put(at("verdicts-note"), found.configured ? `Flaky tests: ${worst(found.flaky)}. Devices that were sick: ${worst(found.weak)}.` : "No history is configured: verdicts in [page] of ugpud.toml.");
    rows("verdicts", found.recent.map((each) => [stamp(new Date(1000 * each.time)), each.test, each.verdict, each.devices ?? "", each.reason]), "No verdicts.", ["When", "Test", "Verdict", "Devices", "Reason"]);
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
    recall().then(showBundles).catch(complain);
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
  refuse(why === "not logged in" ? "" : why);
  at("token").focus();
}

function refuse(why: string): void {
  put(at("login-error"), why);
  at("token").setAttribute("aria-invalid", String(why !== ""));
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
    refuse(error instanceof Refused ? error.message : "ugpud does not answer");
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
at("search").addEventListener("input", look);
at("device").addEventListener("change", look);
at<HTMLDetailsElement>("bundles-part").addEventListener("toggle", () => {
  if (at<HTMLDetailsElement>("bundles-part").open) void showBundles();
});
at<HTMLDetailsElement>("verdicts-part").addEventListener("toggle", () => {
  if (at<HTMLDetailsElement>("verdicts-part").open) void showVerdicts();
});
watch();
