// Made from page.ts by make page; sha256 81a35445ef4d22e1af1b05209df3ddfee030f1558d6cedd81f750dbfd3394ed1
import { at, button, make, put, sync } from "./dom.js";
import { drawPlot, makePlot, merge, past, PLOTS, remember } from "./plots.js";
import { counted, lasting, sensorRows, shown, stamp, stampOf, words } from "./words.js";
const EVENTS = 300;
const SAID_MS = 8000;
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
function wanted(device, text) {
    const chosen = at("device").value;
    const looked = at("search").value.trim().toLowerCase();
    if (chosen && device !== chosen)
        return false;
    const whole = `${device} ${text}`.toLowerCase();
    return looked.split(/\s+/).every((word) => whole.includes(word));
}
function showDevices(found) {
    const select = at("device");
    const chosen = select.value;
    const names = found.cards.map((card) => card.name);
    sync(select, ["", ...names], (name) => name, (name) => make("option", { value: name, label: name || "all devices" }), () => undefined);
    select.value = names.includes(chosen) ? chosen : "";
}
function look() {
    if (state !== null)
        show(state);
    for (const each of at("events").children)
        filterEvent(each);
}
function filterEvent(element) {
    element.hidden = !wanted(element.dataset["device"] ?? "", element.textContent ?? "");
}
async function recall() {
    merge(await request("GET", "/api/history"));
    if (state !== null)
        show(state);
}
function makeCard(card) {
    const name = button(card.name, () => view(card.name), "name");
    return make("li", {}, make("div", { class: "head" }, name), make("p", { class: "line" }, make("span", { class: "state" }), make("span", { class: "who" })), make("p", { class: "why" }), make("p", { class: "trouble" }), make("div", { class: "plots" }), make("p", { class: "dim past" }), make("p", { class: "evidence" }));
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
    if (brief && brief.errors)
        facts.push(`${counted(brief.errors, "fault")} since it was opened`);
    if (brief && brief.resets)
        facts.push(counted(brief.resets, "reset"));
    put(part("past"), facts.join(", "));
    const own = bundlesOf(card.name).length;
    const texts = own ? [`${counted(own, "bundle")} of evidence`] : [];
    sync(part("evidence"), texts, () => "bundles", (text) => button(text, () => view(card.name), "link"), put);
}
function show(found) {
    state = found;
    for (const { name, telemetry } of found.cards)
        if (telemetry !== null)
            remember(name, telemetry.time, telemetry.values);
    put(at("who"), `${found.who.name} (${found.who.role})`);
    const counts = new Map();
    for (const card of found.cards)
        counts.set(card.state, (counts.get(card.state) ?? 0) + 1);
    put(at("summary"), [...counts].map(([name, count]) => `${count} ${name}`).join(", "));
    showDevices(found);
    const held = (name) => found.leases.filter((each) => each.device === name).map((each) => each.holder).join(" ");
    const cards = found.cards.filter((card) => wanted(card.name, `${stateOf(card)} ${card.labels.join(" ")} ${card.reason} ${held(card.name)}`));
    at("no-cards").hidden = cards.length > 0;
    sync(at("cards"), cards, (card) => card.name, makeCard, fillCard);
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
    const names = ["Device", "Holder", "Kind", "Held", "Left"];
    sync(at("leases"), rows.filter((row) => wanted(row.cells[0] ?? "", row.cells.join(" "))), (row) => row.key, (row) => {
        const made = make("tr", {}, ...names.map((name) => make("td", { "data-name": name })), make("td"));
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
    for (const part of ["view-bundles", "view-sensors", "view-firmware", "view-facts"])
        at(part).replaceChildren();
    put(at("view-name"), name);
    const dialog = at("view");
    if (!dialog.open)
        dialog.showModal();
    showActions();
    showOwnBundles();
    void refresh();
}
async function refresh() {
    const name = viewed;
    try {
        const found = await request("GET", `/api/cards/${encodeURIComponent(name)}`);
        if (name !== viewed)
            return;
        const samples = found.telemetry?.samples ?? [];
        rows("view-sensors", sensorRows(samples), found.trouble || "The device tells no sensors.");
        rows("view-facts", Object.entries(found.facts).map(([name, value]) => [words(name), value]), "The device is not open.");
        const units = found.firmware ?? [];
        rows("view-firmware", units.map((one) => [one.unit, one.name, one.ok ? one.meaning : `${one.meaning} Try: ${one.remedy}`]), "This driver tells no states.");
        units.forEach((one, number) => at("view-firmware").children[number]?.children[1]?.classList.add(one.ok ? "ok" : "wrong"));
    }
    catch (error) {
        complain(error);
    }
}
function rows(id, lines, empty, names = []) {
    const given = lines.length ? lines : [[empty]];
    const named = (number) => {
        const name = lines.length ? names[number] : undefined;
        return name === undefined ? {} : { "data-name": name };
    };
    at(id).replaceChildren(...given.map((cells) => make("tr", {}, ...cells.map((cell, number) => make("td", named(number), cell)))));
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
    const allowed = state?.who.role === "admin" ? actions.slice(1) : [];
    const fill = (element, [, enabled]) => { element.disabled = !enabled; };
    sync(at("view-actions"), ["harmless", "danger"].filter((each) => each === "harmless" || allowed.length), (each) => each, (each) => make("span", { class: each === "danger" ? "apart" : "", ...(each === "danger" ? { role: "group", "aria-label": "Actions that stop work" } : {}) }), (element, each) => sync(element, each === "danger" ? allowed : actions.slice(0, 1), ([text]) => text, ([text, , press]) => button(text, press, each === "danger" ? "danger" : ""), fill));
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
    const device = told.fields["device"] ?? "";
    const made = make("li", { class: told.level, "data-device": device }, make("time", { datetime: when.toISOString() }, stamp(when)), make("span", { class: "kind" }, told.kind), told.text);
    const more = [];
    if (told.fields["kernel"])
        more.push(`kernel ${told.fields["kernel"]}`);
    if (told.remedy && !told.text.includes(told.remedy))
        more.push(`try: ${told.remedy}`);
    if (more.length)
        made.append(make("span", { class: "dim more" }, more.join("; ")));
    filterEvent(made);
    if (told.level !== "info")
        queueBundles();
    const list = at("events");
    list.prepend(made);
    while (list.children.length > EVENTS)
        list.lastElementChild?.remove();
}
let bundles = [];
const bundlesOf = (name) => bundles.filter((each) => each.card === name);
let asking = 0;
function queueBundles() {
    clearTimeout(asking);
    asking = window.setTimeout(() => void showBundles(), 1000);
}
function bundleLink(each) {
    if (state?.who.role !== "admin")
        return each.name;
    return make("a", { href: `/api/bundles/${encodeURIComponent(each.name)}`, download: each.name }, each.name);
}
async function showBundles() {
    try {
        bundles = await request("GET", "/api/bundles");
    }
    catch (error) {
        return complain(error);
    }
    put(at("bundles-note"), bundles.length ? "ugpu crash show reads one." : "No failure has left a bundle.");
    const cells = (each) => [stampOf(each.when), each.card || `${each.device} (not of this ugpud)`, `${each.error} ${each.message}`, shown(each.size, "B"), bundleLink(each)];
    rows("bundles", bundles.map(cells), "None.", ["When", "Device", "Error", "Size", "Bundle"]);
    showOwnBundles();
    if (state !== null)
        show(state);
}
function showOwnBundles() {
    const cells = (each) => [stampOf(each.when), `${each.error} ${each.message}`, bundleLink(each)];
    rows("view-bundles", bundlesOf(viewed).map(cells), "No failure of this device has left a bundle.", ["When", "Error", "Bundle"]);
}
async function showVerdicts() {
    try {
        const found = await request("GET", "/api/verdicts");
        const worst = (lines) => lines.slice(0, 5).map((each) => `${each.name} (${each.bad} of ${each.runs})`).join(", ") || "none";
        put(at("verdicts-note"), found.configured ? `Flaky tests: ${worst(found.flaky)}. Devices that were sick: ${worst(found.weak)}.` : "No history is configured: verdicts in [page] of ugpud.toml.");
        rows("verdicts", found.recent.map((each) => [stamp(new Date(1000 * each.time)), each.test, each.verdict, each.devices ?? "", each.reason]), "No verdicts.", ["When", "Test", "Verdict", "Devices", "Reason"]);
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
        recall().then(showBundles).catch(complain);
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
    refuse(why === "not logged in" ? "" : why);
    at("token").focus();
}
function refuse(why) {
    put(at("login-error"), why);
    at("token").setAttribute("aria-invalid", String(why !== ""));
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
        refuse(error instanceof Refused ? error.message : "ugpud does not answer");
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
at("search").addEventListener("input", look);
at("device").addEventListener("change", look);
at("bundles-part").addEventListener("toggle", () => {
    if (at("bundles-part").open)
        void showBundles();
});
at("verdicts-part").addEventListener("toggle", () => {
    if (at("verdicts-part").open)
        void showVerdicts();
});
watch();
