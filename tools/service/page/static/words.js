// Made from words.ts by make page; sha256 e2e9e27a2add14a39cf09dcaff1e574c9d231278e867620a98bed624659aa921
const SCALES = [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]];
export function shown(value, unit) {
    if (unit === "ratio")
        return `${Math.round(100 * value)} %`;
    if (unit === "flag")
        return value ? "yes" : "no";
    if (unit === "B" || unit === "bytes") {
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
                return `${Number((value / scale).toFixed(2))} ${prefix}${unit}`;
    }
    const text = Number.isInteger(value) ? String(value) : value.toPrecision(3);
    return unit ? `${text} ${unit}` : text;
}
const WORDS = {
    usage_ratio: "Load", memory_used_bytes: "Memory used", memory_total_bytes: "Memory", clock_hertz: "Clock", power_watts: "Power",
    power_limit_watts: "Power limit", temperature_celsius: "Temperature", fan_rpm: "Fan speed", fan_abnormal: "Fan fault",
    throttle_events: "Times the clock was lowered", link_generation: "PCIe generation", link_lanes: "PCIe lanes", link_errors: "PCIe errors",
    links_up: "Links up", ecc_errors: "Memory errors", memory_rows_remapped: "Memory rows replaced", performance_state: "Performance state",
    load_threads: "Load of the host", resting: "At rest",
};
const LABELS = { gfx: "compute", sm: "compute", gpu: "chip", socket: "whole chip", pcie: "", nvlink: "NVLink" };
const REASONS = [[/^ppt(\d+)$/, "power limit $1"], [/^temp (.+)$/, "temperature, $1"], [/^tdc (.+)$/, "current, $1"]];
const SAID = new Set(["generation", "state", "lanes", "links", "errors", "events"]);
const UNITS = /_(amperes|bytes|celsius|errors|hertz|lanes|ratio|threads|volts|watts|joules)$/;
export function words(name) {
    const plain = name.replace(UNITS, "").replaceAll("_", " ");
    return WORDS[name] ?? plain.charAt(0).toUpperCase() + plain.slice(1);
}
function sensorWords(sample) {
    const label = LABELS[sample.label] ?? sample.label;
    return label ? `${words(sample.name)}, ${label}` : words(sample.name);
}
export function sensorRows(samples) {
    const reasons = samples.filter((one) => one.name === "clock_throttled");
    const rows = samples.filter((one) => one.name !== "clock_throttled").map((one) => [sensorWords(one), shown(one.value, SAID.has(one.unit) ? "" : one.unit)]);
    if (reasons.length) {
        const held = reasons.filter((one) => one.value).map((one) => REASONS.reduce((text, [pattern, word]) => text.replace(pattern, word), one.label));
        rows.push(["Clock lowered by", held.join("; ") || "nothing"]);
    }
    return rows;
}
const two = (number) => String(number).padStart(2, "0");
export const clock = (when) => `${two(when.getHours())}:${two(when.getMinutes())}`;
export const stamp = (when) => `${when.getFullYear()}-${two(when.getMonth() + 1)}-${two(when.getDate())} ${clock(when)}:${two(when.getSeconds())}`;
export function stampOf(text) {
    const when = new Date(text);
    return Number.isNaN(when.getTime()) ? text : stamp(when);
}
export const counted = (count, what) => `${count} ${what}${count === 1 ? "" : "s"}`;
export function lasting(seconds) {
    if (seconds < 90)
        return `${Math.round(seconds)} s`;
    if (seconds < 5400)
        return `${Math.round(seconds / 60)} min`;
    return seconds < 172800 ? `${(seconds / 3600).toFixed(1)} h` : `${Math.round(seconds / 86400)} d`;
}
