// Made from page.ts by make page; sha256 730a02ca923f544b199bdcca8510c47d08f2e5c1076ff6b4b0c5ce5bb7ea0a2a
"use strict";
const POINTS = 120;
const EVENTS = 300;
const SAID_MS = 8000;
const PLOTS = [
    { key: "usage_ratio", title: "Load", unit: "ratio", most: () => 1 },
    { key: "memory_used_bytes", title: "Memory", unit: "B", most: (values) => values["memory_total_bytes"] },
    { key: "temperature_celsius", title: "Temperature", unit: "°C" },
    { key: "power_watts", title: "Power", unit: "W" },
    { key: "clock_hertz", title: "Clock", unit: "Hz" },
];
function at(id) {
    const found = document.getElementById(id);
    if (found === null)
        throw new Error(`no element ${id}`);
    return found;
}
function make(tag, properties = {}, ...children) {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(properties))
        made.setAttribute(name, value);
    made.append(...children);
    return made;
}
function button(text, press, kind = "") {
    const made = make("button", { type: "button", class: kind }, text);
    made.addEventListener("click", press);
    return made;
}
function put(element, text) {
    if (element.textContent !== text)
        element.textContent = text;
}
function sync(parent, items, key, create, update) {
    const known = new Map();
    for (const child of [...parent.children])
        known.set(child.getAttribute("data-key") ?? "", child);
    let before = null;
    for (const item of items) {
        const name = key(item);
        let element = known.get(name);
        if (element === undefined) {
            element = create(item);
            element.setAttribute("data-key", name);
        }
        known.delete(name);
        update(element, item);
        const place = before === null ? parent.firstElementChild : before.nextElementSibling;
        if (place !== element)
            parent.insertBefore(element, place);
        before = element;
    }
    for (const child of known.values())
        child.remove();
}
const SCALES = [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]];
function shown(value, unit) {
    if (unit === "ratio")
        return `${Math.round(100 * value)} %`;
    if (unit === "flag")
        return value ? "yes" : "no";
    if (unit === "B") {
        let size = value;
        for (const name of ["B", "KiB", "MiB", "GiB"]) {
            if (size < 1024)
                return `${size < 10 && name !== "B" ? size.toFixed(1) : Math.round(size)} ${name}`;
            size /= 1024;
        }
        return `${size.toFixed(1)} TiB`;
    }
    if (unit === "Hz" || unit === "J" || unit === "B/s") {
        for (const [scale, prefix] of SCALES)
            if (value >= scale)
                return `${(value / scale).toFixed(2)} ${prefix}${unit}`;
    }
    const text = Number.isInteger(value) ? String(value) : value.toPrecision(3);
    return unit ? `${text} ${unit}` : text;
}
const counted = (count, what) => `${count} ${what}${count === 1 ? "" : "s"}`;
function lasting(seconds) {
    if (seconds < 90)
        return `${Math.round(seconds)} s`;
    if (seconds < 5400)
        return `${Math.round(seconds / 60)} min`;
    return seconds < 172800 ? `${(seconds / 3600).toFixed(1)} h` : `${Math.round(seconds / 86400)} d`;
}
let saying = 0;
function say(text) {
    put(at("said"), text);
    clearTimeout(saying);
    saying = window.setTimeout(() => put(at("said"), ""), SAID_MS);
}
class Refused extends Error {
    status;
    failure;
    constructor(status, failure) {
        super(failure.message);
        this.status = status;
        this.failure = failure;
    }
}
async function request(method, path, body) {
    const options = { method, credentials: "same-origin" };
    if (body !== undefined) {
        options.headers = { "Content-Type": "application/json" };
        options.body = JSON.stringify(body);
    }
    const answer = await fetch(path, options);
    const found = await answer.json();
    if (!answer.ok)
        throw new Refused(answer.status, found);
    return found;
}
function complain(error) {
    if (error instanceof Refused) {
        if (error.status === 401)
            return logIn(error.failure.message);
        say(error.failure.remedy ? `${error.message}. Try: ${error.failure.remedy}` : error.message);
    }
    else {
        say("ugpud does not answer");
    }
}
let state = null;
const past = new Map();
function remember(card) {
    if (card.telemetry === null)
        return;
    let plots = past.get(card.name);
    if (plots === undefined)
        past.set(card.name, (plots = new Map()));
    for (const { key } of PLOTS) {
        const value = card.telemetry.values[key];
        if (value === undefined)
            continue;
        const points = plots.get(key) ?? [];
        points.push(value);
        if (points.length > POINTS)
            points.shift();
        plots.set(key, points);
    }
}
const SVG = "http://www.w3.org/2000/svg";
function makePlot(title) {
    const image = document.createElementNS(SVG, "svg");
    image.setAttribute("viewBox", "0 0 100 20");
    image.setAttribute("preserveAspectRatio", "none");
    image.setAttribute("role", "img");
    image.append(document.createElementNS(SVG, "polyline"));
    return make("p", { class: "plot" }, make("span", { class: "dim" }, `${title} `), make("span", { class: "value" }), image);
}
function drawPlot(plot, { title, unit }, points, most) {
    const last = points[points.length - 1] ?? 0;
    const low = Math.min(...points), high = Math.max(...points);
    const top = Math.max(most ?? high, 1e-9);
    const text = most !== undefined && unit !== "ratio" ? `${shown(last, unit)} of ${shown(most, unit)}` : shown(last, unit);
    const image = plot.querySelector("svg"), line = plot.querySelector("polyline"), value = plot.querySelector(".value");
    if (image === null || line === null || value === null)
        return;
    put(value, text);
    image.setAttribute("aria-label", `${title}: ${text}; from ${shown(low, unit)} to ${shown(high, unit)} in the last ${lasting(points.length)}`);
    const place = (point, number) => `${(100 * (number + POINTS - points.length)) / (POINTS - 1)},${19 - (18 * Math.max(0, point)) / top}`;
    line.setAttribute("points", points.map(place).join(" "));
}
function makeCard(card) {
    const name = button(card.name, () => view(card.name), "name");
    return make("li", {}, make("div", { class: "head" }, name), make("p", { class: "line" }, make("span", { class: "state" }), make("span", { class: "who" })), make("p", { class: "why" }), make("p", { class: "trouble" }), make("div", { class: "plots" }), make("p", { class: "dim past" }));
}
function stateOf(card) {
    return card.resting ? `${card.state}, resting` : card.state;
}
function fillCard(element, card) {
    element.className = `card ${card.state}`;
    const part = (name) => element.querySelector(`.${name}`);
    put(part("state"), stateOf(card));
    const held = state?.leases.filter((each) => each.device === card.name).map((each) => each.holder) ?? [];
    put(part("who"), held.length ? ` by ${held.join("; ")}` : ` ${card.labels.filter((each) => each !== card.name).join(", ")}`);
    put(part("why"), card.reason);
    const brief = card.telemetry;
    const troubles = Object.values(card.troubles);
    if (card.trouble)
        troubles.push(`history: ${card.trouble}`);
    if (brief?.failure)
        troubles.push(brief.failure);
    if (brief && brief.age_s > 10 && card.state !== "off")
        troubles.push(`no telemetry for ${lasting(brief.age_s)}`);
    put(part("trouble"), troubles.join("; "));
    const plots = past.get(card.name);
    const drawn = PLOTS.filter((each) => plots?.has(each.key));
    sync(part("plots"), drawn, (each) => each.key, (each) => makePlot(each.title), (plot, each) => drawPlot(plot, each, plots?.get(each.key) ?? [], each.most?.(brief?.values ?? {})));
    const known = card.history;
    const facts = [counted(card.served, "lease"), counted(known.failures, "failure")];
    if (known.mtbf_s !== null)
        facts.push(`every ${lasting(known.mtbf_s)}`);
    if (known.mttr_s !== null)
        facts.push(`mended in ${lasting(known.mttr_s)}`);
    if (brief && brief.queue_depth)
        facts.push(`${counted(brief.queue_depth, "submission")} under way`);
    put(part("past"), facts.join(", "));
}
function show(found) {
    state = found;
    found.cards.forEach(remember);
    put(at("who"), `${found.who.name} (${found.who.role})`);
    const counts = new Map();
    for (const card of found.cards)
        counts.set(card.state, (counts.get(card.state) ?? 0) + 1);
    put(at("summary"), [...counts].map(([name, count]) => `${count} ${name}`).join(", "));
    sync(at("cards"), found.cards, (card) => card.name, makeCard, fillCard);
    showLeases(found);
    showActions();
}
function showLeases(found) {
    const rows = found.leases.map((each) => ({
        key: `lease ${each.lease}`, lease: each.lease,
        cells: [each.device, each.holder, each.kind, lasting(each.held_s), lasting(each.left_s)],
    }));
    found.waiting.forEach((each, number) => rows.push({
        key: `waits ${number} ${each.holder}`, lease: 0,
        cells: [each.device, each.holder, `${each.kind}, waits (priority ${each.priority})`, "", lasting(each.left_s)],
    }));
    at("no-leases").hidden = rows.length > 0;
    sync(at("leases"), rows, (row) => row.key, (row) => {
        const made = make("tr", {}, ...row.cells.map(() => make("td")), make("td"));
        if (row.lease && found.who.role === "admin") {
            const press = () => ask(`End lease ${row.lease} of ${row.cells[1]} on ${row.cells[0]}? Its work is stopped.`, "End lease", false, () => request("POST", `/api/leases/${row.lease}/release`, {}));
            made.lastElementChild?.append(button("End", press, "danger"));
        }
        return made;
    }, (element, row) => row.cells.forEach((text, number) => put(element.children[number], text)));
}
let viewed = "";
function view(name) {
    viewed = name;
    for (const part of ["view-sensors", "view-firmware", "view-facts"])
        at(part).replaceChildren();
    put(at("view-name"), name);
    const dialog = at("view");
    if (!dialog.open)
        dialog.showModal();
    showActions();
    void refresh();
}
async function refresh() {
    const name = viewed;
    try {
        const found = await request("GET", `/api/cards/${encodeURIComponent(name)}`);
        if (name !== viewed)
            return;
        const samples = found.telemetry?.samples ?? [];
        rows("view-sensors", samples.map((one) => [one.label ? `${one.name}, ${one.label}` : one.name, shown(one.value, one.unit)]), found.trouble || "The device tells no sensors.");
        rows("view-facts", Object.entries(found.facts), "The device is not open.");
        const units = found.firmware ?? [];
        rows("view-firmware", units.map((one) => [one.unit, one.name, one.ok ? one.meaning : `${one.meaning} Try: ${one.remedy}`]), "This driver tells no states.");
        units.forEach((one, number) => at("view-firmware").children[number]?.children[1]?.classList.add(one.ok ? "ok" : "wrong"));
    }
    catch (error) {
        complain(error);
    }
}
function rows(id, lines, empty) {
    const given = lines.length ? lines : [[empty]];
    at(id).replaceChildren(...given.map((cells) => make("tr", {}, ...cells.map((text) => make("td", {}, text)))));
}
function showActions() {
    const card = state?.cards.find((each) => each.name === viewed);
    if (card === undefined || !at("view").open)
        return;
    put(at("view-state"), card.reason ? `${card.state}: ${card.reason}` : stateOf(card));
    const path = `/api/cards/${encodeURIComponent(card.name)}`;
    const actions = [
        ["Refresh", true, () => void refresh()],
        ["Reset", card.state === "ready", () => ask(`Reset ${card.name}? What it holds is lost.`, "Reset", false, () => request("POST", `${path}/reset`, {}))],
        ["Quarantine", card.state !== "off", () => ask(`Take ${card.name} out of use? Its leases end.`, "Quarantine", true, (reason) => request("POST", `${path}/quarantine`, { reason }))],
        ["Try again", card.state === "quarantined", () => ask(`Have ${card.name} recovered and leased again?`, "Try again", false, () => request("POST", `${path}/recover`, {}))],
    ];
    const allowed = state?.who.role === "admin" ? actions : actions.slice(0, 1);
    sync(at("view-actions"), allowed, ([text]) => text, ([text, , press]) => button(text, press, text === "Refresh" ? "" : "danger"), (element, [, enabled]) => { element.disabled = !enabled; });
}
let answered = null;
function ask(text, yes, reasoned, act) {
    answered = act;
    put(at("ask-text"), text);
    put(at("ask-yes"), yes);
    at("ask-label").hidden = at("ask-reason").hidden = !reasoned;
    at("ask-reason").value = "";
    const dialog = at("ask");
    if (!dialog.open)
        dialog.showModal();
}
async function answer() {
    const act = answered;
    answered = null;
    at("ask").close();
    if (act === null)
        return;
    try {
        await act(at("ask-reason").value);
    }
    catch (error) {
        complain(error);
    }
}
function tell(told) {
    at("no-events").hidden = true;
    const when = new Date(1000 * told.time);
    const made = make("li", { class: told.level }, make("time", { datetime: when.toISOString() }, when.toLocaleTimeString()), make("span", { class: "kind" }, told.kind), told.text);
    if (told.remedy && !told.text.includes(told.remedy))
        made.append(make("span", { class: "dim" }, ` ${told.remedy}`));
    const list = at("events");
    list.prepend(made);
    while (list.children.length > EVENTS)
        list.lastElementChild?.remove();
}
async function showBundles() {
    try {
        const found = await request("GET", "/api/bundles");
        const admin = state?.who.role === "admin";
        put(at("bundles-note"), found.length ? "ugpu crash show reads one." : "No failure has left a bundle.");
        at("bundles").replaceChildren(...found.map((each) => {
            const link = admin ? make("a", { href: `/api/bundles/${encodeURIComponent(each.name)}`, download: each.name }, each.name) : each.name;
            return make("tr", {}, ...[each.when, each.device, `${each.error} ${each.message}`, shown(each.size, "B"), link].map((cell) => make("td", {}, cell)));
        }));
    }
    catch (error) {
        complain(error);
    }
}
async function showVerdicts() {
    try {
        const found = await request("GET", "/api/verdicts");
        const worst = (lines) => lines.slice(0, 5).map((each) => `${each.name} (${each.bad} of ${each.runs})`).join(", ") || "none";
        put(at("verdicts-note"), found.configured ? `Flaky tests: ${worst(found.flaky)}. Devices that were sick: ${worst(found.weak)}.` : "No history is configured: verdicts in [page] of ugpud.toml.");
        rows("verdicts", found.recent.map((each) => [new Date(1000 * each.time).toLocaleString(), each.test, each.verdict, each.devices ?? "", each.reason]), "No verdicts.");
    }
    catch (error) {
        complain(error);
    }
}
let stream = null;
function watch() {
    stream?.close();
    const made = (stream = new EventSource("/api/stream"));
    made.addEventListener("open", () => {
        put(at("link"), "live");
        at("login").hidden = true;
        at("fleet").hidden = at("leave").hidden = false;
    });
    made.addEventListener("state", (message) => show(JSON.parse(message.data)));
    made.addEventListener("event", (message) => tell(JSON.parse(message.data)));
    made.addEventListener("end", (message) => {
        made.close();
        logIn(JSON.parse(message.data).message);
    });
    made.addEventListener("error", () => {
        put(at("link"), "not connected");
        if (made.readyState !== EventSource.CLOSED || made !== stream)
            return;
        request("GET", "/api/state").then(() => window.setTimeout(watch, 2000), (error) => {
            if (error instanceof Refused && error.status === 401)
                complain(error);
            else
                window.setTimeout(watch, 2000);
        });
    });
}
function logIn(why) {
    stream?.close();
    stream = null;
    for (const dialog of document.querySelectorAll("dialog"))
        dialog.close();
    put(at("link"), "");
    put(at("who"), "");
    at("fleet").hidden = at("leave").hidden = true;
    at("login").hidden = false;
    put(at("login-error"), why === "not logged in" ? "" : why);
    at("token").focus();
}
async function enter(event) {
    event.preventDefault();
    const token = at("token");
    try {
        await request("POST", "/api/session", { token: token.value.trim() });
        token.value = "";
        at("events").replaceChildren();
        watch();
    }
    catch (error) {
        put(at("login-error"), error instanceof Refused ? error.message : "ugpud does not answer");
    }
}
at("login").addEventListener("submit", (event) => void enter(event));
at("leave").addEventListener("click", () => {
    request("DELETE", "/api/session").then(() => logIn(""), complain);
});
at("ask-form").addEventListener("submit", (event) => {
    event.preventDefault();
    void answer();
});
at("ask-no").addEventListener("click", () => at("ask").close());
at("view").addEventListener("close", () => { viewed = ""; });
at("level").addEventListener("change", (event) => {
    at("events").className = `level-${event.target.value}`;
});
at("bundles-part").addEventListener("toggle", () => {
    if (at("bundles-part").open)
        void showBundles();
});
at("verdicts-part").addEventListener("toggle", () => {
    if (at("verdicts-part").open)
        void showVerdicts();
});
watch();
