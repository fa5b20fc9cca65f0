// All runs on one plot: speed-up over the number of boards, what their seconds went to, how they learned. A scheme has one colour here and in
// every plot that the package draws; runs of one scheme differ in their dashes.

function runLook(app, k) {
  const { scheme } = app.runs[k].doc,
    nth = app.runs.slice(0, k).filter((run) => run.doc.scheme === scheme).length,
    place = MADE.places[scheme] ?? k;
  return { color: ink(place), dash: DASHES[(nth + Math.floor(place / MADE.series.light.length)) % DASHES.length] };
}

const runName = (run, k) => `${k + 1}. ${run.doc.summary.nodes} × ${run.doc.scheme}`;

// Training speed over boards: {counts, lines: [{name, y}], without}. Against the smallest count of all that there are, as the tables
// have it: one ideal line is then right for all. Schemes without a run on so few have no speed-up, and are named.
function speedUps(works) {
  const counts = [...new Set(works.map((w) => w.boards))].sort((a, b) => a - b);
  const rate = (scheme, n) => {
    const same = works.filter((w) => w.scheme === scheme && w.boards === n);
    return same.length ? same.reduce((a, w) => a + w.rate, 0) / same.length : NaN;
  };
  const all = [...new Set(works.map((w) => w.scheme))].map((name) => ({
    name,
    y: counts.map((n) => rate(name, n) / rate(name, counts[0])),
  }));
  return { counts, lines: all.filter((l) => known(l.y[0])), without: all.filter((l) => !known(l.y[0])).map((l) => l.name) };
}

function speedView(app) {
  const box = h("div", { class: "plot" }),
    legend = h("div", { class: "legend" }),
    note = h("p", { class: "note" });
  const card = app.card(
    "speed",
    "Speed-up with more boards",
    "half",
    note,
    legend,
    box,
  );
  const chart = new Chart(box, {
    label: "Speed-up over boards",
    xText: (v, tick) => (tick ? String(v) : `${v} boards`),
    yText: (v, more) => `${numberText(v, more, 3)}×`,
  });
  const draw = () => {
    const works = app.runs.map((run) => ({ scheme: run.doc.scheme, ...workOf(run) })).filter((w) => w.rate > 0),
      { counts, lines, without } = speedUps(works),
      x = Float64Array.from(counts);
    note.textContent =
      "training examples a second of the whole fleet, against the same scheme on " +
      (counts.length ? `${counts[0]} ${counts[0] === 1 ? "board" : "boards"}, the fewest of these runs` : "the fewest boards") +
      (without.length ? `; with no run on so few: ${without.join("; ")}` : "");
    const series = lines.map(({ name, y }) => ({
      label: name,
      y,
      ...runLook(app, app.runs.findIndex((run) => run.doc.scheme === name)),
      width: 2,
      dots: true,
      spanGaps: true,
    }));
    if (counts.length > 1)
      series.push({
        label: "ideal",
        y: counts.map((n) => n / counts[0]),
        color: css("--muted"),
        dash: [3, 4],
        width: 1.2,
        dots: false,
      });
    legend.replaceChildren(...legendOf(series));
    chart.draw({
      x,
      from: 0,
      to: counts.length - 1,
      whole: true,
      xLabel: "boards",
      series: counts.length > 1 ? series : [],
      log: app.state.log,
    });
  };
  return { element: card.element, draw, chart };
}

function runsBars(app) {
  const body = h("div", { class: "bars wide", role: "list", style: { minHeight: `${23 * app.runs.length}px` } }),
    more = h("div", { class: "more" });
  let numbers = [];
  const card = app.card(
    "runs-time",
    "Seconds of a round, run by run",
    "half",
    h("p", { class: "note" }, "mean of the boards"),
    partLegend(),
    body,
    more,
  );
  const draw = () => {
    const rows = app.runs.map((run, k) => {
      const per = run.boards
        .map((b) => [partSums(run, b, 0, run.length - 1), run.rounds(b, 0, run.length - 1)])
        .filter(([sums, n]) => sums && n);
      return {
        node: runName(run, k),
        sums: PARTS.map((_, p) => per.reduce((a, [sums, n]) => a + sums[p] / n, 0) / (per.length || 1)),
      };
    });
    const total = (row) => row.sums.reduce((a, b) => a + b, 0),
      widest = Math.max(...rows.map(total), 1e-12);
    body.replaceChildren(...rows.flatMap((row) => barRow(app, row, (v) => v, total(row), widest, secondsText)));
    numbers = [["run", ...PARTS.map((part) => `${part}_s`), "sum_s"], ...rows.map((row) => [row.node, ...row.sums, total(row)])];
    more.replaceChildren(
      later("as a table", () =>
        table(
          ["run", ...PARTS, "sum"],
          numbers.slice(1).map(([run, ...seconds]) => ({ cells: [run, ...seconds.map((v) => secondsText(v))] })),
        ),
      ),
    );
  };
  return { element: card.element, draw, rows: () => numbers };
}

// A metric of all runs on one axis. Runs have rounds of their own, so each is drawn at its own places of a common axis.
function runsMetric(app, name, title) {
  const box = h("div", { class: "plot" }),
    legend = h("div", { class: "legend" });
  const card = app.card(`all-${name.replace("/", "-")}`, title, "half", legend, box);
  const chart = new Chart(box, { label: title, xText: app.xText, yText: unitOf(name), zoomed: null, height: 240 });
  const draw = () => {
    const kind = app.state.x,
      curves = app.runs.map((run) => thinCurve(run, name, kind, +app.state.smooth)),
      places = [...new Set(curves.flatMap((c) => c.map(([x]) => x)))].sort((a, b) => a - b);
    const at = new Map(places.map((x, i) => [x, i])),
      goal = goalOf(app);
    const series = curves
      .map((curve, k) => {
        const y = new Float64Array(places.length).fill(NaN);
        for (const [x, v] of curve) y[at.get(x)] = v;
        return {
          label: runName(app.runs[k], k),
          y,
          ...runLook(app, k),
          width: 1.8,
          spanGaps: true,
          dots: false,
          kind: "last",
          empty: !curve.length,
        };
      })
      .filter((one) => !one.empty);
    if (goal?.name === name && series.length)
      series.push({ label: `goal: ${goal.text}`, y: places.map(() => goal.value), color: css("--muted"), dash: [2, 3], width: 1, dots: false, quiet: true });
    legend.replaceChildren(...legendOf(series));
    chart.draw({
      x: Float64Array.from(places),
      from: 0,
      to: places.length - 1,
      series,
      ...limitsOf(name),
      marks: app.runs.flatMap((run, k) =>
        [...run.resumes, ...run.marks].map((mark) => ({
          at: nearest(places, run.x(kind)[mark.at]),
          kind: mark.event,
          text: `${k + 1}. ${markText(mark)}`,
          color: runLook(app, k).color,
        })),
      ),
      whole: kind === "round",
      xLabel: X_LABELS[kind],
      log: app.state.log,
    });
  };
  return { element: card.element, draw, chart };
}

const nearest = (places, x) => places.reduce((best, v, i) => (Math.abs(v - x) < Math.abs(places[best] - x) ? i : best), 0);

function thinCurve(run, name, kind, window, most = 400) {
  const rows = run.shown(name, new Set(run.nodes)),
    x = run.x(kind);
  if (!rows.length) return [];
  const { mean: plain } = run.spread(name, rows),
    sparse = name.startsWith("eval/"),
    mean = sparse || !window ? plain : run.smoothed(`${name} of all`, plain, window),
    out = [];
  for (
    let b = 0, a = 0, ends = stretches(0, run.length - 1, sparse ? run.length : most);
    b < ends.length;
    a = ends[b] + 1, b++
  ) {
    const [v] = REDUCE[sparse ? "last" : "mean"](mean, a, ends[b]);
    if (v !== null) out.push([x[ends[b]], v]);
  }
  return out;
}
