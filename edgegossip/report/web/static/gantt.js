// One round of all boards side by side, on one clock.

const LETTER = { c: "compute", e: "encode", t: "transmit", d: "decode", w: "wait", o: "other" };
const GUESSED = ["compute", "encode", "transmit", "wait", "decode", "other"];
const SVG = "http://www.w3.org/2000/svg";

function s(tag, attributes, text) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  if (text !== undefined) element.textContent = text;
  return element;
}

// A board's round: when it began on the common clock, and its stretches [letter, seconds, whether frames were on their
// way beside it]. Null when it is not known.
function roundOf(run, node, step) {
  const table = run.tables[node],
    seconds = table["time/round_s"];
  let row = seconds ? table.step.lastIndexOf(step) : -1;
  while (row >= 0 && !(table.step[row] === step && known(seconds[row]))) row--; // a record of that round without seconds is an evaluation's
  if (row < 0) return null;
  const length = seconds[row],
    text = (run.doc.spans[node] || {})[step];
  const start = run.time(node, table.t_s[row]) - length;
  if (text)
    return {
      node,
      start,
      exact: true,
      spans: [...text.matchAll(/([a-z])(\d+)/gi)].map(([, part, us]) => [
        part.toLowerCase(),
        us / 1e6,
        part < "a",
      ]),
    };
  return {
    node,
    start,
    exact: false,
    spans: GUESSED.map((part) => [part[0], table[`time/${part}_s`]?.[row] || 0]).filter(([, v]) => v > 0),
  };
}

function ganttView(app) {
  const box = h("div", { class: "plot gantt" }),
    note = h("p", { class: "note" }),
    more = h("div", { class: "more" });
  let numbers = [];
  box.style.minHeight = `${ganttHeight(app.run.doc.summary.boards.length)}px`;
  const card = app.card("gantt", "One round, board by board", "full", note, partLegend(), box, more);
  const number = h("input", {
    type: "number",
    min: 1,
    "aria-label": "round",
    onchange: () => go(Number(number.value) - 1),
  });
  const move = (way) => {
    const all = recorded(app.run),
      step = shownStep(app);
    const at = all.findIndex((v) => v >= step);
    go(way > 0 ? (all.find((v) => v > step) ?? step) : (all[(at < 0 ? all.length : at) - 1] ?? step));
  };
  const go = (step) => app.set({ step });
  card.head.append(
    h(
      "div",
      { class: "field" },
      "round",
      h("button", { type: "button", "aria-label": "earlier recorded round", onclick: () => move(-1) }, "‹"),
      number,
      h("button", { type: "button", "aria-label": "later recorded round", onclick: () => move(1) }, "›"),
    ),
  );
  const draw = () => {
    const run = app.run,
      steps = run.steps,
      step = shownStep(app);
    number.value = step + 1;
    number.max = steps.at(-1) + 1;
    const shown = run.doc.summary.boards.map((b) => b.node).filter((node) => app.picked(node)),
      found = shown.map((node) => (run.tables[node]?.step?.length && roundOf(run, node, step)) || { node, spans: [] }),
      rows = found.filter((r) => r.spans.length);
    const exact = rows.length && rows.every((r) => r.exact);
    note.textContent = !rows.length
      ? ""
      : (exact
          ? "Exact recorded intervals."
          : "Of this round only the sums of the parts were recorded; they are drawn in their usual order (‹ › go to rounds with all stretches).") +
        (run.nodes.every((node) => node in run.doc.clocks)
          ? ""
          : " Boards’ clocks are set by the beginning of their first round.");
    box.replaceChildren(
      rows.length
        ? ganttSvg(app, found, rows, Math.max(280, box.clientWidth))
        : h("p", { class: "empty" }, "no seconds measured in this round"),
    );
    const first = Math.min(...rows.map((r) => r.start)),
      partsOf = (r) => PARTS.map((part) => r.spans.reduce((a, [p, v]) => a + (p === part[0] ? v : 0), 0));
    numbers = [["board", "began_s", ...PARTS.map((part) => `${part}_s`)], ...rows.map((r) => [r.node, r.start - first, ...partsOf(r)])];
    more.replaceChildren(
      later("as a table", () =>
        table(
          ["board", "began", ...PARTS],
          numbers.slice(1).map(([node, ...seconds]) => ({ gone: app.gone(node), cells: [node, ...seconds.map((v) => secondsText(v))] })),
        ),
      ),
    );
  };
  return { element: card.element, draw, rows: () => numbers };
}

// Rounds of which the stretches of the most boards are known.
const recorded = (run) =>
  run.cached("recorded", () => {
    const count = new Map();
    for (const of of Object.values(run.doc.spans))
      for (const step of Object.keys(of)) count.set(Number(step), (count.get(Number(step)) || 0) + 1);
    const most = Math.max(0, ...count.values()),
      all = [...count.keys()].filter((step) => count.get(step) === most).sort((a, b) => a - b);
    return all.length ? all : [...run.steps];
  });
const middle = (run) => {
  const all = recorded(run);
  return all[Math.floor(all.length / 2)] ?? run.steps[0];
};

const ganttRow = (boards) => (boards > 10 ? 19 : 25);
const ganttHeight = (boards) => 4 + 22 + ganttRow(boards) * boards;

// The round that is chosen, or the nearest that there is.
function shownStep(app) {
  const { steps } = app.run,
    asked = app.state.step,
    step = asked === null || asked < steps[0] || asked > steps.at(-1) ? middle(app.run) : asked;
  return steps.includes(step) ? step : steps.reduce((a, b) => (Math.abs(b - step) < Math.abs(a - step) ? b : a), steps[0]);
}

// `found` are all boards; those without this round have a row that says why.
function ganttSvg(app, found, rows, width) {
  const names = width < 520 ? 64 : 108,
    row = ganttRow(found.length),
    top = 4,
    bottom = 22,
    height = ganttHeight(found.length);
  const first = Math.min(...rows.map((r) => r.start)),
    last = Math.max(...rows.map((r) => r.start + r.spans.reduce((a, [, v]) => a + v, 0)));
  const x = (t) => names + ((t - first) / (last - first || 1)) * (width - names - 14);
  const svg = s("svg", {
    width,
    height,
    viewBox: `0 0 ${width} ${height}`,
    role: "img",
    "aria-label": "Each board’s round from left to right",
  });
  svg.append(textures());
  for (const t of ticks(last - first, width < 520 ? 4 : 9)) {
    svg.append(
      s("line", { x1: x(first + t), x2: x(first + t), y1: top, y2: height - bottom }),
      s(
        "text",
        { x: x(first + t), y: height - 7, "text-anchor": t ? "middle" : "start", class: "axis" },
        t ? secondsText(t) : "0",
      ),
    );
  }
  found.forEach((r, k) => {
    const y = top + k * row,
      name = r.node.length > names / 7 ? r.node.slice(0, Math.floor(names / 7) - 1) + "…" : r.node;
    svg.append(s("text", { x: 0, y: y + row / 2 + 4 }, name));
    if (!r.spans.length) {
      const mark = app.run.marks.findLast((one) => one.node === r.node),
        text = mark ? markText(mark) : "no record of this round";
      svg.append(s("text", { x: names + 4, y: y + row / 2 + 4, class: mark ? "fate" : "axis" }, text));
    }
    let t = r.start;
    const bar = (part, t, length, at, height) => {
      const a = x(t),
        b = x(t + length),
        rect = s("rect", {
          x: a.toFixed(2),
          y: at,
          width: Math.max(0.3, b - a).toFixed(2),
          height,
          class: part,
        });
      rect.info = [r.node, LETTER[part], length, t - first];
      svg.append(rect);
    };
    for (const [part, length, sends] of r.spans) {
      bar(part, t, length, y + 2, row - 5);
      if (sends) bar("t", t, length, y + row - 9, 6);
      t += length;
    }
  });
  svg.addEventListener("pointermove", (event) => {
    const info = event.target.info;
    if (!info) return hideTip();
    showTip(event.clientX, event.clientY, info[0], [
      [css(`--${info[1]}`), info[1], secondsText(info[2])],
      [null, "from", secondsText(info[3])],
    ]);
  });
  svg.addEventListener("pointerleave", hideTip);
  return svg;
}

function ticks(length, most) {
  const rough = length / most || 1,
    power = 10 ** Math.floor(Math.log10(rough)),
    step = [1, 2, 5, 10].map((m) => m * power).find((v) => v >= rough);
  const out = [];
  for (let t = 0; t <= length * 0.97; t += step) out.push(t);
  return out;
}
