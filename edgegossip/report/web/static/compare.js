// Several runs side by side in tables: what came out, how soon and with how many bytes each reached a goal, and where their recipes differ.
// All are held against one of them, the base.

function workOf(run) {
  const last = run.length - 1,
    seconds = run.seconds()[last];
  let examples = 0;
  for (const k of run.boards) examples += run.sum("train/examples", k, 0, last) || 0;
  const rounds = run.boards.reduce((a, k) => a + run.rounds(k, 0, last), 0);
  return {
    boards: run.doc.summary.nodes,
    seconds,
    rate: seconds ? (examples || rounds) / seconds : null,
    unit: examples ? "examples" : "rounds",
  };
}

// Of several runs the scores that they go by, each once; a loss has its own places.
const isScore = (name) => name && name !== "loss";
const headlines = (runs) => [...new Set(runs.map((run) => run.doc.summary.score).filter(isScore))];

// Columns of scores that there are, the headline of each run first.
function scoreNames(runs) {
  const names = [...headlines(runs), ...runs.flatMap((run) => Object.keys(run.doc.summary.scores).filter(isScore))];
  return [...new Set(names)].map((name) => `eval/${name}`).filter((name) => runs.some((run) => run.has(name)));
}

// Without the time that a run folder's name begins with.
const shortName = (run) => run.doc.name.replace(/^\d{8}-\d{6}-/, "");

// What a run has more or less than the base: of seconds and bytes how many times as much, of scores the difference.
const times = (v, base) => (known(v) && base > 0 ? numberText(v / base, 0, 3) : "–");
const more = (name) => (v, base) => {
  if (!known(v) || !known(base)) return "–";
  const text = name === "accuracy" ? `${Math.abs(100 * (v - base)).toFixed(2)} points` : numberText(Math.abs(v - base), 0, 3);
  return `${v < base ? "−" : "+"}${text}`;
};

// A table of the runs: columns [header, of a run, its text, how it is held against the base's; null: not at all].
function against(app, columns) {
  const base = app.runs[app.state.base] ? app.state.base : 0,
    header = columns.flatMap(([name, , , delta]) => (delta ? [name, `${delta === times ? "÷" : "−"} run ${base + 1}`] : [name]));
  const rows = app.runs.map((run, k) => ({
    cells: columns.flatMap(([, of, text, delta]) => {
      const value = of(run, k);
      return delta ? [text(value), k === base ? "" : delta(value, of(app.runs[base], base))] : [text(value)];
    }),
  }));
  return table(header, rows);
}

const plain = (v) => v;

function baseChoice(app) {
  const choose = h(
    "select",
    { onchange: () => app.set({ base: +choose.value }) },
    app.runs.map((run, k) => h("option", { value: k, selected: k === app.state.base }, `${k + 1}. ${shortName(run)}`)),
  );
  return h("label", { class: "field" }, "held against", choose);
}

function compareTable(app) {
  const box = h("div", { style: { minHeight: `${28 * (app.runs.length + 1)}px` } });
  const card = app.card("runs", "The runs", "full", box);
  card.head.append(baseChoice(app));
  const draw = () => {
    const boards = ({ doc: { summary: d } }) => (d.failed_nodes.length ? `${d.nodes - d.failed_nodes.length} of ${d.nodes}` : d.nodes);
    box.replaceChildren(
      against(app, [
        ["run", (run, k) => `${k + 1}. ${shortName(run)}`, plain],
        ["scheme", (run, k) => [swatch(runLook(app, k)), run.doc.scheme], plain],
        ["boards", boards, plain],
        ["rounds", (run) => run.doc.summary.rounds, plain],
        ...headlines(app.runs).map((name) => [name, (run) => run.doc.summary.scores[name]?.mean, scoreText(name), more(name)]),
        ["test loss", (run) => run.doc.summary.loss, numberText],
        ["training time", (run) => workOf(run).seconds, secondsText, times],
        ["a round", (run) => workOf(run).seconds / run.doc.summary.rounds, secondsText],
        [workOf(app.runs[0]).unit, (run) => workOf(run).rate, (v) => (known(v) ? `${numberText(v)}/s` : "–"), times],
        ["sent", (run) => run.doc.summary.sent_bytes.socket, bytesText, times],
        ["bits/value", (run) => run.doc.summary.bits_per_value, (v) => (known(v) ? v.toFixed(2) : "–")],
      ]),
    );
  };
  return { element: card.element, draw };
}

// What the runs are to reach: {name, value, text, rises}: the score that they go by or, without one, the training loss. If nobody says a value, it is
// the best that all of them reached, a little less.
function goalOf(app) {
  const score = headlines(app.runs)[0],
    name = score ? `eval/${score}` : "train/loss",
    curves = app.runs.map((run) => meanOf(run, name).filter(known)).filter((curve) => curve.length);
  if (!curves.length) return null;
  const rises = curves.reduce((a, curve) => a + curve.at(-1) - curve[0], 0) > 0 || (score === "accuracy" && curves.every((c) => c.length === 1)),
    best = (curve) => curve.reduce((a, v) => ((rises ? v > a : v < a) ? v : a)),
    all = curves.map(best).reduce((a, v) => ((rises ? v < a : v > a) ? v : a)),
    percent = score === "accuracy",
    step = percent ? 0.01 : 10 ** Math.floor(Math.log10(Math.abs(all) || 1) - 1),
    easy = +((rises ? Math.floor(all / step) : Math.ceil(all / step)) * step).toPrecision(6),
    value = app.state.target === null ? easy : percent ? app.state.target / 100 : app.state.target;
  return { name, value, rises, percent, best, text: unitOf(name)(value) };
}

const meanOf = (run, name) => {
  const rows = run.shown(name, new Set(run.nodes));
  if (!rows.length) return new Float64Array(0);
  const { mean } = run.spread(name, rows);
  return name.startsWith("eval/") ? mean : run.smoothed(`${name} of all`, mean, 20); // a loss of one batch says little
};

const ROUNDED = 2e-5; // of what view.py packs: 45 % may be here as 44.9997 %

// The first round after which the mean of the boards was there, and what had been spent by then; null where that never was.
function reached(run, goal) {
  const room = ROUNDED * Math.abs(goal.value),
    i = meanOf(run, goal.name).findIndex((v) => (goal.rises ? v >= goal.value - room : v <= goal.value + room));
  return i < 0 ? null : { round: run.steps[i] + 1, seconds: run.seconds()[i], bytes: run.bytes()[i] };
}

function goalTable(app) {
  const box = h("div", { style: { minHeight: `${28 * (app.runs.length + 1)}px` } }),
    note = h("p", { class: "note" }),
    number = h("input", { type: "number", step: "any", "aria-label": "what is to be reached", onchange: () => app.set({ target: number.value === "" ? null : +number.value }) }),
    unit = h("span", {});
  const card = app.card("goal", "Seconds and bytes to a goal", "full", note, box);
  card.head.append(h("div", { class: "field" }, "reach", number, unit));
  const draw = () => {
    const goal = goalOf(app);
    if (!goal) {
      note.textContent = "";
      box.replaceChildren(h("p", { class: "empty" }, app.run.pending ? "" : "no run was evaluated"));
      return;
    }
    number.value = +(goal.percent ? 100 * goal.value : goal.value).toPrecision(6);
    unit.textContent = goal.percent ? "%" : "";
    note.textContent =
      `the first ${goal.name === "train/loss" ? "round after which the training loss, over 20 rounds," : "evaluation at which the test " + goal.name.slice(5)}, mean of the boards, was ${goal.text} or ${goal.rises ? "more" : "less"}; seconds of training, bytes sent by all boards`;
    const spent = (what) => (run) => reached(run, goal)?.[what] ?? null,
      best = (run) => {
        const curve = meanOf(run, goal.name).filter(known);
        return curve.length ? goal.best(curve) : null;
      };
    box.replaceChildren(
      against(app, [
        ["run", (run, k) => `${k + 1}. ${shortName(run)}`, plain],
        ["scheme", (run, k) => [swatch(runLook(app, k)), run.doc.scheme], plain],
        ["boards", (run) => run.doc.summary.nodes, plain],
        ["seconds", spent("seconds"), (v) => (known(v) ? secondsText(v) : "never"), times],
        ["bytes", spent("bytes"), bytesText, times],
        ["rounds", spent("round"), (v) => v ?? "–", times],
        ["at best", best, unitOf(goal.name)],
      ]),
    );
  };
  return { element: card.element, draw };
}

// The keys of the recipes whose values are not the same in all runs.
function differencesView(app) {
  const box = h("div", {});
  const card = app.card("differences", "Where the recipes differ", "full", box);
  const draw = () => {
    const keys = [...new Set(app.runs.flatMap((run) => Object.keys(run.doc.settings)))],
      value = (run, key) => (Object.hasOwn(run.doc.settings, key) ? run.doc.settings[key] : "–"),
      differ = keys.filter((key) => key !== "run.name" && new Set(app.runs.map((run) => value(run, key))).size > 1);
    box.replaceChildren(
      differ.length
        ? table(
            ["key", ...app.runs.map((run, k) => `${k + 1}. ${shortName(run)}`)],
            differ.map((key) => ({ cells: [key, ...app.runs.map((run) => value(run, key))] })),
          )
        : h("p", { class: "empty" }, "nowhere but in the name"),
    );
  };
  return { element: card.element, draw };
}
