// Numbers as people read them, as units.py has them, and elements of the page.

// `more` digits than usual tell the ticks of an axis apart whose range is narrow.

const three = (v, more = 0) => v.toFixed((v >= 99.95 ? 0 : v >= 9.995 ? 1 : 2) + more);

function scaled(v, units, more = 0) {
  let k = 0;
  while (Math.abs(v) >= 999.5 && k < units.length - 1) {
    v /= 1000;
    k++;
  }
  return `${k === 0 ? v.toFixed(more) : three(v, more)} ${units[k]}`;
}

const known = (v) => v !== null && v !== undefined && v === v;
const orDash =
  (text) =>
  (v, more = 0) =>
    known(v) ? text(v, more) : "–";
const bytesText = orDash((v, more) => scaled(v, ["B", "kB", "MB", "GB", "TB"], more));
const percentText = orDash((v, more) => `${(100 * v).toFixed(1 + more)} %`);

const secondsText = orDash((s, more) => {
  if (s === 0) return "0 s";
  if (Math.abs(s) < 0.0009995) return `${three(s * 1e6, more)} µs`;
  if (Math.abs(s) < 0.9995) return `${three(s * 1e3, more)} ms`;
  if (s < 119.5) return `${three(s, more)} s`;
  const whole = Math.round(s),
    hours = Math.floor(whole / 3600),
    minutes = Math.floor((whole % 3600) / 60);
  return hours >= 2
    ? `${hours} h ${String(minutes).padStart(2, "0")} min`
    : `${Math.floor(whole / 60)} min ${String(whole % 60).padStart(2, "0")} s`;
});

const numberText = (v, more = 0, digits = 4) => {
  if (!known(v)) return "–";
  if (v === 0) return "0";
  return Math.abs(v) >= 1e6 || Math.abs(v) < 1e-3 ? v.toExponential(2 + more) : String(+v.toPrecision(digits + more));
};

// How values of a metric read, by the unit at the end of its name.
const UNITS = [
  ["_bytes", bytesText],
  ["_s", secondsText],
  ["_c", orDash((v, more) => `${v.toFixed(1 + more)} °C`)],
  ["_w", orDash((v, more) => `${numberText(v, more, 3)} W`)],
  ["_j", orDash((v, more) => (v < 999.5 ? `${three(v, more)} J` : scaled(v, ["J", "kJ", "MJ"], more)))],
  ["_hz", orDash((v, more) => scaled(v, ["Hz", "kHz", "MHz", "GHz"], more))],
  ["_percent", orDash((v, more) => `${numberText(v, more)} %`)],
];

// A score of an evaluation is a plain number whatever its name ends with, an accuracy a percentage, as in the table.
const accuracyText = (v, digits = 2) => (known(v) ? `${(100 * v).toFixed(digits)} %` : "–");
const scoreText = (name) => (name === "accuracy" ? accuracyText : numberText);
const unitOf = (name) =>
  name.startsWith("eval/") ? scoreText(name.slice(5)) : (UNITS.find(([end]) => name.endsWith(end)) || [null, numberText])[1];

// What its axis may show: an accuracy or a share ends at 100 %, and 0 means nothing in degrees and hertz. See yRange.
const MOST = { "train/share": 1, "sys/throttled": 1, "sys/on_battery": 1, "sys/machine_percent": 100, "sys/battery_percent": 100 };
const limitsOf = (name) => ({
  most: Object.hasOwn(MOST, name) ? MOST[name] : undefined,
  share: name === "eval/accuracy",
  free: name === "sys/temperature_c" || name === "sys/frequency_hz",
});

// What became of a board, or of the run, in one sentence: an entry of the summary's interruptions, or resumes.
const markText = ({ node = "the run", event, rounds, t_s, why = "" }) =>
  `${node} ${{ restarted: "started again", resumed: "was resumed" }[event] || "lost"} after ${rounds} ${rounds === 1 ? "round" : "rounds"}, ` +
  `at ${secondsText(t_s)} wall${why && `: ${why}`}`;

// The ticks of an axis, with as many digits as tell them apart.
function tickTexts(values, text) {
  const shown = values.filter(known); // a logarithmic axis has lines without a text
  let texts = [];
  for (let more = 0; more < 5; more++) {
    texts = values.map((v) => (known(v) ? text(v, more) : ""));
    if (new Set(texts.filter((t) => t)).size === shown.length) break;
  }
  return texts;
}

const TITLES = {
  "train/loss": "Training loss",
  "eval/loss": "Test loss",
  "train/lr": "Learning rate",
  "codec/bits_per_value": "Bits per value",
  "codec/relative_error": "Relative error of the codec",
  "gossip/consensus_distance": "Distance to neighbours’ models",
  "gossip/heard": "Neighbours heard of",
  "net/sent_bytes": "Bytes sent a round",
  "sys/temperature_c": "Temperature",
  "sys/throttled": "Throttled (share of boards)",
  "train/share": "Share of the work of boards that spare themselves",
  "sys/battery_percent": "Battery",
  "sys/on_battery": "On battery (share of boards)",
  "sys/available_bytes": "Memory left",
  "sys/swap_bytes": "Swapped out",
  "sys/rss_bytes": "Resident memory",
  "sys/peak_rss_bytes": "Peak memory",
  "sys/cpu_percent": "CPU load of the process",
  "sys/machine_percent": "CPU load of the machine",
  "sys/power_w": "Power",
  "sys/energy_j": "Energy a round",
  "sys/frequency_hz": "CPU frequency",
  "sys/threads": "Threads",
  "sys/descriptors": "Open descriptors",
  "sys/tasks": "Coroutines",
  "time/cpu_s": "CPU seconds a round",
  "train/examples": "Examples a round",
  "net/received_bytes": "Bytes received a round",
  "net/link_bytes": "Bytes on the link a round",
  "net/payload_bytes": "Payload a round",
  "net/overhead_bytes": "Overhead a round",
  "time/round_s": "Seconds a round",
};

function titleOf(name) {
  const words = name
    .split("/")
    .pop()
    .replace(/_(s|c|w|j|hz|bytes|percent)$/, "")
    .replaceAll("_", " ");
  if (name.startsWith("eval/") && !Object.hasOwn(TITLES, name)) return `Test ${name.slice(5)}`;
  const area = name.startsWith("cpu/") ? "CPU seconds: " : "";
  return (Object.hasOwn(TITLES, name) && TITLES[name]) || (area ? area + words : words.charAt(0).toUpperCase() + words.slice(1));
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
  const buttons = choices.map(([value, text]) =>
    h(
      "button",
      {
        type: "button",
        "aria-pressed": String(value === chosen),
        "data-value": value,
        onclick: () => {
          buttons.forEach((b) => b.setAttribute("aria-pressed", String(b.dataset.value === String(value))));
          pick(value);
        },
      },
      text,
    ),
  );
  return h("div", { class: "seg", role: "group", "aria-label": label }, buttons);
}

function table(header, rows, caption) {
  return h(
    "div",
    { class: "scroll" },
    h(
      "table",
      {},
      caption && h("caption", { class: "muted" }, caption),
      h(
        "thead",
        {},
        h(
          "tr",
          {},
          header.map((name) => h("th", { scope: "col" }, name)),
        ),
      ),
      h(
        "tbody",
        {},
        rows.map(({ cells, gone }) =>
          h(
            "tr",
            { class: gone ? "gone" : null },
            cells.map((cell) => h("td", {}, cell)),
          ),
        ),
      ),
    ),
  );
}

// Made when it is opened: a table of many boards costs time that few need.
function later(summary, make) {
  const box = h(
    "details",
    {
      class: "no-print",
      ontoggle: () => {
        if (box.open && box.children.length === 1) box.append(make());
      },
    },
    h("summary", {}, summary),
  );
  return box;
}

const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
