// Any metric against rounds, seconds or bytes: the mean of the chosen boards in the band between the least and the greatest, or each as a
// line.

const LINES = 2; // up to so many boards are lines without asking

// Series and bands of a metric; where it is asked for, smoothed over some rounds. Evaluations are few, and stay as they are.
function metricSeries(app, run, name, { dots = false } = {}) {
  const rows = run.shown(name, app.state.chosen);
  if (!rows.length) return { series: [], bands: [] };
  const sparse = name.startsWith("eval/"),
    window = sparse ? 0 : +app.state.smooth,
    smooth = (key, y) => (window ? run.smoothed(`${name} ${key}`, y, window) : y),
    how = window ? `, over ${window} rounds` : "";
  if (rows.length === 1 || app.state.every || rows.length <= LINES) {
    const m = run.matrix(name);
    const lines = rows.map((k) => {
      const place = Math.max(0, run.boards.indexOf(k));
      return {
        label: run.nodes[k] + how,
        y: smooth(k, m[k]),
        kind: sparse ? "last" : "both",
        color: ink(place),
        dash: inkDash(place),
        spanGaps: sparse,
        dots: dots || undefined,
        width: rows.length > 3 ? 1.1 : 1.5,
      };
    });
    const raw = window && rows.length <= LINES ? lines.map((line, k) => ({ ...line, y: m[rows[k]], faint: true, quiet: true })) : [];
    return { series: [...raw, ...lines], bands: [], sorted: true };
  }
  const { mean, low, high } = run.spread(name, rows),
    color = css("--accent"),
    edge = { width: 0, color: "transparent", dots: false, spanGaps: sparse };
  return {
    series: [
      { ...edge, label: "greatest", y: high, kind: sparse ? "last" : "max" },
      { ...edge, label: "least", y: low, kind: sparse ? "last" : "min" },
      {
        label: `mean of ${rows.length} boards${how}`,
        y: smooth(`mean ${app.key()}`, mean),
        kind: sparse ? "last" : "mean",
        color,
        width: 1.8,
        spanGaps: sparse,
        dots: dots || undefined,
      },
    ],
    bands: [{ series: [1, 2], fill: `${color}33` }],
  };
}

function metricView(app, name, size, extra = {}) {
  const box = h("div", { class: "plot" }),
    legend = h("div", { class: "legend" });
  const card = app.card(
    `m-${name.replace(/[^a-z0-9]+/gi, "-")}`,
    extra.title || titleOf(name),
    size,
    extra.note && h("p", { class: "note" }, extra.note),
    legend,
    box,
  );
  const chart = new Chart(box, {
    label: titleOf(name),
    xText: app.xText,
    yText: unitOf(name),
    zoomed: app.zoomed,
    sync: "x",
    height: extra.height || 210,
  });
  const draw = () => {
    const drawn = metricSeries(app, app.run, name, extra);
    const data = {
      ...app.axis(),
      ...drawn,
      ...limitsOf(name),
    };
    if (extra.also && app.run.has(extra.also)) addTest(app, data, extra.also);
    legend.replaceChildren(...legendOf(data.series));
    chart.draw(data);
  };
  return { element: card.element, draw, chart };
}

// The test loss over the training loss: a dot an evaluation.
function addTest(app, data, name) {
  const rows = app.run.shown(name, app.state.chosen);
  if (!rows.length) return;
  data.series = [
    ...data.series,
    {
      label: `test, ${rows.length > 1 ? `mean of ${rows.length} boards` : app.run.nodes[rows[0]]}`,
      y: app.run.spread(name, rows).mean,
      kind: "last",
      color: css("--ink"),
      dash: [4, 3],
      spanGaps: true,
      width: 1.5,
      dots: true,
    },
  ];
}

const swatch = ({ color, dash }) => h("i", { class: `line ${dash?.length ? "dashed" : ""}`, style: { borderTopColor: color } });

function legendOf(series) {
  const shown = series.filter((s) => s.width !== 0 && !s.faint);
  if (shown.length > 10) return [h("span", {}, `${shown.length} lines, in the colours of their boards above`)];
  const entries = shown.map((s) => h("span", {}, swatch(s), s.label));
  if (series.some((s) => s.width === 0))
    entries.push(h("span", {}, h("i", { style: { background: `${shown[0].color}33` } }), "least to greatest board"));
  return entries;
}

const FIRST = ["codec/bits_per_value", "codec/relative_error", "gossip/consensus_distance", "net/sent_bytes"];
const SENSORS = [
  "sys/temperature_c",
  "sys/throttled",
  "sys/frequency_hz",
  "sys/power_w",
  "sys/energy_j",
  "sys/rss_bytes",
  "sys/cpu_percent",
  "sys/machine_percent",
];
const DULL = new Set([
  "train/lr",
  "train/examples",
  "sys/threads",
  "sys/descriptors",
  "sys/tasks",
  "sys/peak_rss_bytes",
  "net/link_bytes",
  "net/payload_bytes",
  "net/overhead_bytes",
  "net/received_bytes",
  "time/cpu_s",
  "server/answers",
]);

// Metrics that the run has and that nobody named yet: whatever sensors write is drawn.
function sensorNames(run) {
  const found = [...run.names].filter((name) => name.startsWith("sys/") && !DULL.has(name));
  const place = (name) => (SENSORS.indexOf(name) < 0 ? 99 : SENSORS.indexOf(name));
  return found.sort((a, b) => place(a) - place(b) || a.localeCompare(b));
}

// One plot of whatever is chosen.
function anyView(app) {
  const box = h("div", { class: "plot" }),
    legend = h("div", { class: "legend" });
  const choose = h("select", { "aria-label": "metric", onchange: () => app.set({ metric: choose.value }) });
  const card = app.card("any", "Any metric", "full", legend, box);
  card.head.append(choose);
  const chart = new Chart(box, {
    label: "Any metric",
    xText: app.xText,
    yText: (v, more) => unitOf(choose.value)(v, more),
    zoomed: app.zoomed,
    sync: "x",
    height: 250,
  });
  const draw = () => {
    const names = [...app.run.names].filter((n) => !["step", "t_s", "rounds"].includes(n)).sort(),
      now = [app.state.metric, "time/round_s"].find((name) => names.includes(name)) ?? names[0];
    choose.replaceChildren(...names.map((name) => h("option", { value: name, selected: name === now }, name)));
    const drawn = metricSeries(app, app.run, now);
    legend.replaceChildren(...legendOf(drawn.series));
    chart.draw({ ...app.axis(), ...drawn, ...limitsOf(now) });
  };
  return { element: card.element, draw, chart };
}
