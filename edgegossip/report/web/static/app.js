// The page: what is chosen, which plots there are, and when they are drawn.

const POLL_S = 2;
const X_LABELS = { round: "round", seconds: "seconds of training", bytes: "bytes sent by all boards" };

class App {
  constructor(made) {
    this.made = made;
    this.runs = [];
    this.views = [];
    this.state = { run: 0, x: "round", from: 0, to: 0, whole: true, chosen: new Set(), every: false };
    this.zoomed = (a, b) => this.zoom(a, b);
    this.xText = (v, tick, more) => (this.state.x === "seconds" ? secondsText(v, more) : this.state.x === "bytes" ? bytesText(v, more) : tick ? String(v) : `round ${v}`);
    this.seen = new IntersectionObserver((entries) => entries.forEach((e) => { const view = this.views.find((v) => v.element === e.target); if (view) { view.visible = e.isIntersecting; this.drawSoon(); } }), { rootMargin: "200px" });
  }

  get run() { return this.runs[this.state.run]; }
  picked(node) { return this.state.chosen.has(node) || node === this.run.doc.coordinator; }
  gone(node) { return this.run?.state[node] === "lost"; }
  key() { return `${[...this.state.chosen].join("|")}`; }
  axis() { return { x: this.run.x(this.state.x), from: this.state.from, to: this.state.to, whole: this.state.x === "round", xLabel: X_LABELS[this.state.x] }; }

  card(id, title, size, ...body) {
    const head = h("div", { class: "card-head" }, h("h2", { id: `h-${id}` }, title));
    const element = h("section", { class: `card ${size}`, id, "aria-labelledby": `h-${id}` }, head, ...body);
    return { element, head };
  }

  start() {
    document.getElementById("controls").hidden = false;
    this.select(this.state.run);
    addEventListener("resize", () => { clearTimeout(this.resizing); this.resizing = setTimeout(() => this.dirty(), 120); });
  }

  select(k) {
    this.state.run = k;
    this.state.chosen = new Set(this.run.nodes);
    Object.assign(this.state, { from: 0, to: this.run.length - 1, whole: true });
    this.shape = this.signature();
    renderHead(this);
    renderControls(this);
    this.build();
  }

  // Which plots there are depends on what was measured.
  signature() { return [...this.run.names].sort().join() + this.run.nodes.join() + (this.run.doc.links.length > 0); }

  build() {
    const run = this.run, many = this.runs.length > 1, has = (name) => run.has(name);
    const views = many ? [compareTable(this), speedView(this), runsBars(this), runsMetric(this, "train/loss", "Training loss, all runs"), runsMetric(this, "eval/accuracy", "Test accuracy, all runs")] : [];
    if (run.length) {
      views.push(barsView(this), partsView(this));
      if (has("train/loss") || has("eval/loss")) views.push(metricView(this, has("train/loss") ? "train/loss" : "eval/loss", "half", { also: has("train/loss") ? "eval/loss" : null, title: "Loss", height: 250 }));
      if (has("eval/accuracy")) views.push(metricView(this, "eval/accuracy", "half", { dots: true, height: 250 }));
      if (has("time/round_s")) views.push(metricView(this, "time/round_s", "full", { zero: true, note: "each board’s own rounds" }));
      views.push(ganttView(this), linksView(this), eventsView(this));
      views.push(...FIRST.filter(has).map((name) => metricView(this, name, "half")));
      views.push(...sensorNames(run).map((name) => metricView(this, name, "third", { height: 170 })));
      views.push(anyView(this));
    } else views.push(eventsView(this));
    views.push(boardsView(this), partitionView(this), recipeView(this));
    this.seen.disconnect();
    this.views = views;
    fillRows(views.map((v) => v.element));
    document.getElementById("main").replaceChildren(...views.map((v) => v.element));
    views.forEach((v) => this.seen.observe(v.element));
    this.dirty();
  }

  dirty() { this.views.forEach((v) => { v.stale = true; }); this.drawSoon(); }

  drawSoon() {
    if (this.waiting) return;
    this.waiting = true;
    requestAnimationFrame(() => { this.waiting = false; this.draw((v) => v.visible); });
  }

  draw(which) { this.views.filter((v) => v.stale && which(v)).forEach((v) => { v.stale = false; v.draw(); }); }

  zoom(a, b) {
    const last = this.run.length - 1;
    const [from, to] = a === null ? [0, last] : [Math.max(0, Math.min(a, last - 1)), Math.min(last, Math.max(b, a + 1))];
    Object.assign(this.state, { from: Math.max(0, from), to, whole: from <= 0 && to >= last });
    this.onZoom();
    this.dirty();
  }

  // More of a run that goes on.
  grown() {
    if (this.state.whole) Object.assign(this.state, { from: 0, to: this.run.length - 1 });
    if (this.signature() !== this.shape) {
      for (const node of this.run.nodes) if (!this.shape.includes(node)) this.state.chosen.add(node);
      this.shape = this.signature();
      renderControls(this);
      this.build();
    } else { this.onZoom(); this.dirty(); }
    renderHead(this);
  }
}

// No holes in the grid: of neighbouring cards of one size those that do not fill a row become wider.
function fillRows(cards) {
  const group = (size) => (card) => card.classList.contains(size);
  const widen = (run, from, to) => run.forEach((card) => card.classList.replace(from, to));
  for (let a = 0, b; a < cards.length; a = b) {
    const size = ["third", "half", "full"].find((s) => group(s)(cards[a])), same = group(size);
    for (b = a + 1; b < cards.length && same(cards[b]); ) b++;
    const n = b - a;
    if (size === "third" && n % 3) widen(cards.slice(n % 3 === 2 ? b - 2 : Math.max(a, b - 4), b), "third", n === 1 ? "full" : "half");
    if (size === "half" && n % 2) widen([cards[b - 1]], "half", "full");
  }
}

function renderHead(app) {
  const many = app.runs.length > 1, { summary: d, title, name } = app.run.doc, s = d.sent_bytes;
  document.title = `${many ? `${app.runs.length} runs` : name} · edgegossip`;
  document.getElementById("title").textContent = many ? `${app.runs.length} runs` : name;
  document.getElementById("subtitle").textContent = (many ? `chosen: ${name} · ` : "") + title;
  document.getElementById("verdict").textContent = verdict(app.run);
  const seconds = app.run.length ? app.run.seconds().at(-1) : null, bad = d.failed_nodes.length;
  const tiles = [
    ["Accuracy", percentText(d.accuracy.mean), known(d.accuracy.min) && d.nodes > 1 ? `${percentText(d.accuracy.min)} to ${percentText(d.accuracy.max)}` : "of the test set"],
    ["Loss", numberText(d.loss), known(d.train_loss) ? `training ${numberText(d.train_loss)}` : ""],
    ["Rounds", String(d.rounds), [d.rounds_asked && d.rounds_asked !== d.rounds ? `of ${d.rounds_asked}` : "", known(seconds) && d.rounds ? `${secondsText(seconds / d.rounds)} each` : ""].filter((s) => s).join(", ")],
    ["Time", secondsText(seconds), "of training"],
    ["Sent", bytesText(s.socket ?? s.payload), known(s.payload) ? `payload ${bytesText(s.payload)}` : "by all boards"],
    ["Bits per value", known(d.bits_per_value) ? d.bits_per_value.toFixed(2) : "–", "of what was sent"],
    ["Boards", bad ? `${d.nodes - bad} of ${d.nodes}` : String(d.nodes), bad ? `lost: ${d.failed_nodes.join(", ")}` : d.unfinished_nodes.length ? `${d.unfinished_nodes.length} not finished` : "all finished", bad],
  ];
  if (app.run.has("sys/energy_j")) {
    const joules = app.run.boards.map((k) => app.run.sum("sys/energy_j", k, 0, app.run.length)).filter(known);
    tiles.splice(6, 0, ["Energy a board", unitOf("energy_j")(joules.reduce((a, b) => a + b, 0) / (joules.length || 1)), joules.length < d.nodes ? `of ${joules.length} with a sensor` : "mean of the boards"]);
  }
  document.getElementById("tiles").replaceChildren(...tiles.map(([term, value, note, alarm]) => h("dl", { class: `tile ${alarm ? "bad" : ""}`, style: { margin: 0 } }, h("dt", {}, term), h("dd", {}, value), h("small", {}, note))));
}

// One sentence on what the seconds went to, and which board the others wait for.
function verdict(run) {
  const last = run.length - 1, rows = run.boards.map((k) => [run.nodes[k], partSums(run, k, 0, last), run.rounds(k, 0, last)]).filter(([, sums, n]) => sums && n);
  if (!rows.length) return "";
  const a = PARTS.map((_, p) => rows.reduce((x, [, sums, n]) => x + sums[p] / n, 0) / rows.length), total = a.reduce((x, y) => x + y, 0);
  const parts = PARTS.map((part, p) => [part, a[p] / total]).sort((x, y) => y[1] - x[1]).filter(([, v]) => v >= 0.05);
  const waits = rows.map(([node, sums]) => [node, sums[4] / sums.reduce((x, y) => x + y, 0)]).sort((x, y) => x[1] - y[1]), rest = waits.slice(1).reduce((x, [, v]) => x + v, 0) / (waits.length - 1 || 1);
  const slow = waits.length > 2 && rest > 0.1 && waits[0][1] < 0.35 * rest ? ` The others wait for ${waits[0][0]}, which hardly ever waits itself.` : "";
  return `A round takes ${secondsText(total)}: ${parts.map(([part, v]) => `${Math.round(100 * v)} % ${part}`).join(", ")}.${slow}`;
}

function renderControls(app) {
  const { state, run } = app, chips = h("div", { class: "chips", role: "group", "aria-label": "boards" });
  const press = () => { chips.querySelectorAll(".chip[data-node]").forEach((c) => c.setAttribute("aria-pressed", String(state.chosen.has(c.dataset.node)))); app.dirty(); };
  const toggle = (node, only) => {
    if (only) state.chosen = new Set([node]);
    else if (!state.chosen.delete(node)) state.chosen.add(node);
    if (!state.chosen.size) state.chosen = new Set(run.nodes);
    press();
  };
  chips.append(h("button", { type: "button", class: "chip", onclick: () => { state.chosen = new Set(run.nodes); press(); } }, "all boards"), ...run.boards.map((k, i) => h("button", { type: "button", class: `chip ${app.gone(run.nodes[k]) ? "gone" : ""}`, "data-node": run.nodes[k], "aria-pressed": String(state.chosen.has(run.nodes[k])), title: "click: on or off; double click: only this one", onclick: () => toggle(run.nodes[k], false), ondblclick: () => toggle(run.nodes[k], true) }, h("i", { class: boardDash(i).length ? "dashed" : "", style: { borderTopColor: boardColor(i) } }), run.nodes[k])));
  const every = h("label", { class: "field" }, h("input", { type: "checkbox", checked: state.every, onchange: (e) => { state.every = e.target.checked; app.dirty(); } }), "a line a board");
  const which = app.runs.length > 1 && h("label", { class: "field" }, "run", h("select", { onchange: (e) => app.select(Number(e.target.value)) }, app.runs.map((r, k) => h("option", { value: k, selected: k === state.run }, `${k + 1}. ${shortName(r)}`))));
  const axis = h("div", { class: "field" }, "against", segmented("horizontal axis", [["round", "rounds"], ["seconds", "seconds"], ["bytes", "bytes"]], state.x, (x) => { state.x = x; app.dirty(); }));
  document.getElementById("controls").replaceChildren(h("div", {}, which, axis, brush(app), every, chips));
}

// From which round to which: two sliders on one track, two numbers, and back to all.
function brush(app) {
  const slide = (label) => h("input", { type: "range", min: 0, "aria-label": label, step: 1 }), low = slide("first round shown"), high = slide("last round shown");
  const number = (label) => h("input", { type: "number", min: 0, "aria-label": label }), first = number("from round"), last = number("to round"), fill = h("div", { class: "fill" });
  const place = (step) => { const i = app.run.steps.findIndex((v) => v >= step); return i < 0 ? app.run.length - 1 : i; };
  low.addEventListener("input", () => app.zoom(Math.min(+low.value, +high.value - 1), +high.value));
  high.addEventListener("input", () => app.zoom(+low.value, Math.max(+high.value, +low.value + 1)));
  first.addEventListener("change", () => app.zoom(place(+first.value), app.state.to));
  last.addEventListener("change", () => app.zoom(app.state.from, place(+last.value)));
  app.onZoom = () => {
    const { from, to } = app.state, end = Math.max(1, app.run.length - 1);
    for (const slider of [low, high]) slider.max = end;
    low.value = from; high.value = to; first.value = app.run.steps[from] ?? 0; last.value = app.run.steps[to] ?? 0;
    Object.assign(fill.style, { left: `${(100 * from) / end}%`, width: `${(100 * (to - from)) / end}%` });
  };
  app.onZoom();
  return h("div", { class: "field range" }, "rounds", first, h("div", { class: "brush" }, h("div", { class: "track" }), fill, low, high), last, h("button", { type: "button", onclick: () => app.zoom(null) }, "all"));
}

function themed(app) {
  const root = document.documentElement, system = matchMedia("(prefers-color-scheme: dark)");
  const set = (dark) => { root.dataset.theme = dark ? "dark" : "light"; if (app.run) { renderControls(app); app.dirty(); } };
  let chosen = null;
  set(system.matches);
  system.addEventListener("change", () => chosen === null && set(system.matches));
  document.getElementById("theme").addEventListener("click", () => { chosen = !isDark(); set(chosen); });
  addEventListener("beforeprint", () => { Object.assign(root.dataset, { theme: "light", print: "1" }); app.dirty(); app.draw(() => true); });
  addEventListener("afterprint", () => { delete root.dataset.print; set(chosen ?? system.matches); });
}

// What the server has of run k besides what is known; null when that is nothing.
async function fetched(k, known = {}) {
  const answer = await fetch(`data/${k}?${new URLSearchParams(known)}`);
  if (!answer.ok) throw new Error((await answer.text()) || answer.statusText);
  return answer.status === 204 ? null : unpack(new Uint8Array(await answer.arrayBuffer()));
}

async function follow(app) {
  const badge = document.getElementById("live-badge"), text = document.getElementById("live-text");
  const tell = () => { text.textContent = app.run.doc.summary.unfinished_nodes.length || !app.run.length ? "live" : "the run is over"; };
  badge.hidden = false;
  for (;;) {
    tell();
    await new Promise((done) => setTimeout(done, 1000 * POLL_S));
    if (document.hidden) continue;
    const run = app.run;
    try {
      const news = await fetched(app.state.run, run.known);
      if (news) { run.absorb(news); app.grown(); }
      badge.classList.remove("stale");
    } catch (error) {
      badge.classList.add("stale");
      text.textContent = "nobody answers: is edgegossip top still running?";
      await new Promise((done) => setTimeout(done, 1000 * POLL_S));
    }
  }
}

const loaded = () => new Promise((done) => (document.readyState === "loading" ? addEventListener("DOMContentLoaded", done, { once: true }) : done()));
const nextFrame = () => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
const packed = (kind) => [...document.querySelectorAll(`script.${kind}`)].map((script) => { script.remove(); return fromBase64(script.textContent); });

async function main() {
  const made = JSON.parse(document.getElementById("page-made").textContent), app = new App(made);
  window.edgegossip = app;
  themed(app);
  document.getElementById("foot").textContent = `Made by edgegossip ${made.version}, ${made.made}. Nothing on this page is asked from anywhere else. Drag across a plot to zoom, double click to see all.`;
  const all = await Promise.all(made.live ? made.runs.map((_, k) => fetched(k)) : packed("run-data").map(unpack));
  app.runs = all.map((one) => { const run = new Run(); run.pending = !made.live; run.absorb(one); return run; });
  app.start();
  await nextFrame();
  performance.mark("usable");
  if (made.live) {
    document.documentElement.dataset.ready = "1";
    await follow(app);
    return;
  }
  await loaded();
  const rest = await Promise.all(packed("run-rest").map(unpack));
  rest.forEach((one, k) => app.runs[k].more(one));
  renderHead(app);
  app.dirty();
  await nextFrame();
  document.documentElement.dataset.ready = "1";
}

main().catch((error) => {
  document.getElementById("title").textContent = "This page cannot show its run";
  document.getElementById("subtitle").textContent = String(error.message || error);
  throw error;
});
