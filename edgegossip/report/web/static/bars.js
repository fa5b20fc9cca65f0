// Where the seconds go: a stacked bar a board, and the parts over the rounds.

const partLegend = () =>
  h(
    "div",
    { class: "legend", "aria-hidden": "true" },
    PARTS.map((part) => h("span", {}, h("i", { class: part }), part)),
  );

const STAGES = ["forward", "backward", "optimiser"]; // of compute, where the workload tells

// Seconds of each part of one board's rounds; clock: "time" for wall, "cpu" for CPU seconds. Null when none were measured.
function partSums(run, k, from, to, clock = "time") {
  const sums = PARTS.map((part) => run.sum(`${clock}/${part}_s`, k, from, to));
  return sums.some((s) => s !== null) ? sums.map((s) => s || 0) : null;
}

function barsView(app) {
  const body = h("div", { class: "bars", role: "list", style: { minHeight: `${23 * app.run.nodes.length}px` } }),
    more = h("div", { class: "more" });
  let numbers = [];
  const card = app.card("time", "Where each board’s seconds went", "half", partLegend(), body, more);
  const both =
    app.run.has("cpu/compute_s") &&
    segmented(
      "clock",
      [
        ["time", "wall"],
        ["cpu", "CPU"],
      ],
      app.state.clock,
      (clock) => app.set({ clock }),
    );
  card.head.append(
    h(
      "div",
      { class: "field" },
      both,
      segmented(
        "seconds shown",
        [
          ["round", "a round"],
          ["sum", "in all"],
          ["share", "share"],
        ],
        app.state.bars,
        (bars) => app.set({ bars }),
      ),
    ),
  );
  const draw = () => {
    const run = app.run,
      { from, to, bars: mode } = app.state,
      clock = run.has("cpu/compute_s") ? app.state.clock : "time",
      stages = clock === "time" ? STAGES.filter((s) => run.has(`time/${s}_s`)) : [];
    const rows = run.nodes
      .map((node, k) => ({
        node,
        sums: partSums(run, k, from, to, clock),
        rounds: run.rounds(k, from, to),
        stages: stages.map((s) => [s, run.sum(`time/${s}_s`, k, from, to)]),
      }))
      .filter((r) => r.sums && r.rounds && app.picked(r.node));
    const total = (row) => row.sums.reduce((a, b) => a + b, 0),
      text = mode === "share" ? percentText : secondsText;
    const value = (row, s) =>
      !known(s) ? null : mode === "share" ? s / (total(row) || 1) : mode === "round" ? s / row.rounds : s;
    const widest = Math.max(...rows.map((row) => value(row, total(row))), 1e-12);
    body.replaceChildren(
      ...rows.flatMap((row) => barRow(app, row, (s) => value(row, s), value(row, total(row)), widest, text)),
    );
    const unit = mode === "share" ? "" : "_s";
    numbers = [
      ["board", ...[...PARTS, "sum", ...stages].map((name) => name + unit), "rounds"],
      ...rows.map((row) => [
        row.node, ...[...row.sums, total(row), ...row.stages.map(([, s]) => s)].map((s) => value(row, s)), row.rounds,
      ]),
    ];
    if (!rows.length) body.replaceChildren(h("p", { class: "empty", role: "listitem" }, "no seconds measured in these rounds"));
    more.replaceChildren(
      later("as a table", () =>
        table(
          ["board", ...PARTS, "sum", ...stages, "rounds"],
          rows.map((row) => ({
            gone: app.gone(row.node),
            cells: [
              row.node,
              ...row.sums.map((s) => text(value(row, s))),
              text(value(row, total(row))),
              ...row.stages.map(([, s]) => text(value(row, s))),
              row.rounds,
            ],
          })),
        ),
      ),
    );
  };
  return { element: card.element, draw, rows: () => numbers };
}

function barRow(app, row, value, sum, widest, text) {
  const pieces = PARTS.map((part, p) => [part, value(row.sums[p])]).filter(([, v]) => v > 0);
  const words = pieces.map(([part, v]) => `${part} ${text(v)}`).join(", ");
  const stages = (row.stages || [])
    .filter(([, s]) => known(s))
    .map(([stage, s]) => [null, `of compute: ${stage}`, text(value(s))]);
  const show = (event) =>
    showTip(event.clientX, event.clientY, row.node, [
      ...pieces.map(([part, v]) => [css(`--${part}`), part, `${text(v)}  ·  ${percentText(v / sum)}`]),
      ...stages,
    ]);
  const bar = h(
    "div",
    { class: "bar", style: { width: `${(100 * sum) / widest}%` }, onpointermove: show, onpointerleave: hideTip },
    pieces.map(([part, v]) => h("span", { class: part, style: { flex: `${(1000 * v) / sum} 0 0` } })),
  );
  return [
    h("div", { class: `name ${app.gone(row.node) ? "gone" : ""}`, title: row.node }, row.node, app.fate(row.node)),
    h("div", { role: "listitem", "aria-label": `${row.node}: ${words}` }, bar),
    h("div", { class: "total" }, text(sum)),
  ];
}

function partsView(app) {
  const box = h("div", { class: "plot" });
  const card = app.card(
    "parts",
    "Seconds a round, by what they went to",
    "half",
    h("p", { class: "note" }, "mean of the chosen boards"),
    partLegend(),
    box,
  );
  const chart = new Chart(box, {
    label: "Seconds a round by part",
    xText: app.xText,
    yText: secondsText,
    zoomed: app.zoomed,
    sync: "x",
  });
  const draw = () => {
    const run = app.run,
      stacked = run.cached(`stack ${app.key()}`, () => stack(run, app.state.chosen));
    const series = stacked
      ? PARTS.map((part, p) => ({
          label: part,
          y: stacked.tops[p],
          kind: "mean",
          color: css(`--${part}`),
          fill: css(`--${part}`),
          texture: PAINTED.includes(part) ? part : null,
          width: 0.5,
          dots: false,
          value: (i) => stacked.means[p][i],
        })).reverse()
      : [];
    chart.draw({
      ...app.axis(),
      series,
      stacked: true,
    });
  };
  return { element: card.element, draw, chart };
}

// Each part's mean over the boards, and those on top of one another.
function stack(run, chosen) {
  const means = PARTS.map((part) => {
    const name = `time/${part}_s`;
    return run.has(name) ? run.spread(name, run.shown(name, chosen)).mean : null;
  });
  if (!means.some((m) => m)) return null;
  const tops = [],
    sum = new Float64Array(run.length);
  for (const mean of means) {
    const known = mean || new Float64Array(run.length);
    known.forEach((v, i) => {
      sum[i] += v === v ? v : mean === means[0] ? NaN : 0;
    });
    tops.push(sum.slice());
  }
  return { means: means.map((m) => m || new Float64Array(run.length)), tops };
}
