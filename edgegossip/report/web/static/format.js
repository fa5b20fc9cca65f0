// Numbers as people read them, as units.py has them, and elements of the page.

function three(v) { return v >= 99.95 ? v.toFixed(0) : v >= 9.995 ? v.toFixed(1) : v.toFixed(2); }

function scaled(v, units, base = 1000) {
  let k = 0;
  while (Math.abs(v) >= 999.5 && k < units.length - 1) { v /= base; k++; }
  return `${k === 0 ? Math.round(v) : three(v)} ${units[k]}`;
}

const known = (v) => v !== null && v !== undefined && v === v;
const bytesText = (v) => (known(v) ? scaled(v, ["B", "kB", "MB", "GB", "TB"]) : "–");
const percentText = (v) => (known(v) ? `${(100 * v).toFixed(1)} %` : "–");

function secondsText(s) {
  if (!known(s)) return "–";
  if (s === 0) return "0 s";
  if (Math.abs(s) < 0.0009995) return `${three(s * 1e6)} µs`;
  if (Math.abs(s) < 0.9995) return `${three(s * 1e3)} ms`;
  if (s < 119.5) return `${three(s)} s`;
  const whole = Math.round(s), hours = Math.floor(whole / 3600), minutes = Math.floor((whole % 3600) / 60);
  return hours >= 2 ? `${hours} h ${String(minutes).padStart(2, "0")} min` : `${Math.floor(whole / 60)} min ${String(whole % 60).padStart(2, "0")} s`;
}

function numberText(v, digits = 4) {
  if (!known(v)) return "–";
  if (v === 0) return "0";
  return Math.abs(v) >= 1e6 || Math.abs(v) < 1e-3 ? v.toExponential(2) : String(+v.toPrecision(digits));
}

// How values of a metric read, by the unit at the end of its name.
function unitOf(name) {
  if (name.endsWith("_bytes")) return bytesText;
  if (name.endsWith("_s")) return secondsText;
  if (name.endsWith("accuracy")) return percentText;
  if (name.endsWith("_c")) return (v) => (known(v) ? `${v.toFixed(1)} °C` : "–");
  if (name.endsWith("_w")) return (v) => (known(v) ? `${numberText(v, 3)} W` : "–");
  if (name.endsWith("_j")) return (v) => (known(v) ? `${numberText(v, 4)} J` : "–");
  if (name.endsWith("_hz")) return (v) => (known(v) ? scaled(v, ["Hz", "kHz", "MHz", "GHz"]) : "–");
  if (name.endsWith("_percent")) return (v) => (known(v) ? `${numberText(v, 4)} %` : "–");
  return (v) => numberText(v);
}

const TITLES = {
  "train/loss": "Loss", "eval/accuracy": "Test accuracy", "train/lr": "Learning rate", "codec/bits_per_value": "Bits per value",
  "codec/relative_error": "Relative error of the codec", "gossip/consensus_distance": "Distance to neighbours’ models",
  "net/sent_bytes": "Bytes sent a round", "sys/temperature_c": "Temperature", "sys/throttled": "Throttled", "sys/rss_bytes": "Resident memory",
  "sys/peak_rss_bytes": "Peak memory", "sys/cpu_percent": "CPU load of the process", "sys/power_w": "Power", "sys/energy_j": "Energy a round",
  "sys/frequency_hz": "CPU frequency", "sys/threads": "Threads", "sys/descriptors": "Open descriptors", "sys/tasks": "Coroutines",
  "time/cpu_s": "CPU seconds a round", "train/examples": "Examples a round", "net/received_bytes": "Bytes received a round",
  "net/link_bytes": "Bytes on the link a round", "net/payload_bytes": "Payload a round", "net/overhead_bytes": "Overhead a round",
  "time/round_s": "Seconds a round",
};

function titleOf(name) {
  const words = name.split("/").pop().replace(/_(s|c|w|j|hz|bytes|percent)$/, "").replaceAll("_", " ");
  const area = name.startsWith("cpu/") ? "CPU seconds: " : "";
  return TITLES[name] || (area ? area + words : words.charAt(0).toUpperCase() + words.slice(1));
}

// h("div", {class: "x", onclick: f}, "text", child): text is never read as HTML.
function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "style") Object.assign(element.style, value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(2).filter((c) => c !== null && c !== undefined && c !== false));
  return element;
}

// Buttons of which one is pressed.
function segmented(label, choices, chosen, pick) {
  const buttons = choices.map(([value, text]) => h("button", { type: "button", "aria-pressed": String(value === chosen), "data-value": value, onclick: () => {
    buttons.forEach((b) => b.setAttribute("aria-pressed", String(b.dataset.value === String(value))));
    pick(value);
  } }, text));
  return h("div", { class: "seg", role: "group", "aria-label": label }, buttons);
}

function table(header, rows, caption) {
  return h("div", { class: "scroll" }, h("table", {}, caption && h("caption", { class: "muted" }, caption),
    h("thead", {}, h("tr", {}, header.map((name) => h("th", { scope: "col" }, name)))),
    h("tbody", {}, rows.map(({ cells, gone }) => h("tr", { class: gone ? "gone" : null }, cells.map((cell) => h("td", {}, cell)))))));
}

// Made when it is opened: a table of many boards costs time that few need.
function later(summary, make) {
  const box = h("details", { class: "no-print", ontoggle: () => { if (box.open && box.children.length === 1) box.append(make()); } }, h("summary", {}, summary));
  return box;
}

const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
