// The page: what is chosen, which plots there are, and when they are drawn.

const X_LABELS = { round: "rounds done", seconds: "seconds of training", bytes: "bytes sent by all boards" };

class App {
  constructor(made) {
    this.made = made;
    this.alarms = new Set(made.alarms);
    this.runs = [];
    this.views = [];
    this.state = null; // see state.js
    this.zoomed = (a, b) => this.zoom(a, b);
    this.xText = (v, tick, more) =>
      this.state.x === "seconds"
        ? secondsText(v, more)
        : this.state.x === "bytes"
          ? bytesText(v, more)
          : tick
            ? String(v)
            : `after round ${v}`;
    this.seen = new IntersectionObserver(
      (entries) =>
        entries.forEach((e) => {
          const view = this.views.find((v) => v.element === e.target);
          if (view) {
            view.visible = e.isIntersecting;
            this.drawSoon();
          }
        }),
      { rootMargin: "200px" },
    );
  }

  get run() {
    return this.state && this.runs[this.state.run];
  }
  // A board without rounds cannot be chosen, and is not left out: what became of it is what people look for.
  picked(node) {
    return this.state.chosen.has(node) || node === this.run.doc.coordinator || !this.run.nodes.includes(node);
  }
  gone(node) {
    return this.run?.state[node] === "lost";
  }
  // A mark behind the name of a board whose process ended too early, with what became of it.
  fate(node) {
    const marks = this.run.marks.filter((mark) => mark.node === node);
    return marks.length > 0 && h("span", { class: "fate", title: marks.map(markText).join("\n") }, " ✕");
  }
  key() {
    return JSON.stringify([...this.state.chosen]);
  }
  axis() {
    return {
      x: this.run.x(this.state.x),
      from: this.state.from,
      to: this.state.to,
      whole: this.state.x === "round",
      xLabel: X_LABELS[this.state.x],
      log: this.state.log,
      marks: [
        ...this.run.changes
          .filter(({ nodes }) => [...nodes].some((node) => this.picked(node)))
          .map(({ at, texts }) => ({ at, kind: "rate", text: texts.slice(0, 3).join("; ") + (texts.length > 3 ? `; and ${texts.length - 3} more` : "") })),
        ...[...this.run.resumes, ...this.run.marks.filter(({ node }) => this.picked(node))].map((mark) => ({
          at: mark.at,
          kind: mark.event,
          text: markText(mark),
        })),
      ],
    };
  }

  // Something else is chosen: the address says so, and all is drawn anew.
  set(changes) {
    Object.assign(this.state, changes);
    this.told();
    this.dirty();
  }
  told() {
    const address = toAddress(this);
    if (address !== location.hash.slice(1)) history.replaceState(null, "", address ? `#${address}` : location.pathname + location.search);
  }

  card(id, title, size, ...body) {
    const head = h("div", { class: "card-head" }, h("h2", { id: `h-${id}` }, title));
    const element = h("section", { class: `card ${size}`, id, "aria-labelledby": `h-${id}` }, head, ...body);
    return { element, head };
  }

  start() {
    this.goTo(location.hash.slice(1));
    document.documentElement.dataset.started = "1";
    addEventListener("hashchange", () => this.goTo(location.hash.slice(1)));
    addEventListener("resize", () => {
      clearTimeout(this.resizing);
      this.resizing = setTimeout(() => this.dirty(), 120);
    });
  }

  goTo(address) {
    this.state = fromAddress(address, this.runs);
    this.themed();
    this.show();
  }

  select(run) {
    Object.assign(this.state, { run, from: 0, to: this.runs[run].length - 1, whole: true, chosen: new Set(this.runs[run].nodes), step: null });
    this.told();
    this.show();
  }

  show() {
    this.offered = new Set(this.run.nodes);
    this.shape = this.signature();
    renderHead(this);
    renderControls(this);
    this.build();
  }

  // Which plots there are depends on what was measured.
  signature() {
    return JSON.stringify([[...this.run.names].sort(), this.run.nodes, this.run.doc.links.length > 0]);
  }

  build() {
    const run = this.run,
      many = this.runs.length > 1,
      has = (name) => run.has(name);
    this.across = many
      ? [
          goalTable(this),
          compareTable(this),
          differencesView(this),
          ...(new Set(this.runs.map((one) => one.doc.summary.nodes)).size > 1 ? [speedView(this)] : []),
          runsBars(this),
          runsMetric(this, "train/loss", "Training loss, all runs"),
          ...scoreNames(this.runs).map((name) => runsMetric(this, name, `${titleOf(name)}, all runs`)),
        ]
      : [];
    const views = [...this.across];
    if (run.length) {
      views.push(barsView(this), partsView(this));
      if (has("train/loss") || has("eval/loss"))
        views.push(
          metricView(this, has("train/loss") ? "train/loss" : "eval/loss", "half", {
            also: has("train/loss") ? "eval/loss" : null,
            title: !has("train/loss") ? "Test loss" : has("eval/loss") ? "Training and test loss" : "Training loss",
            height: 250,
          }),
        );
      views.push(
        ...scoreNames([run]).map((name) => metricView(this, name, "half", { dots: true, height: 250 })),
      );
      if (has("time/round_s"))
        views.push(metricView(this, "time/round_s", "full", { note: "each board’s own rounds" }));
      views.push(ganttView(this), linksView(this), eventsView(this));
      if (hasRates(run)) views.push(...RATES.map((rate) => ratesView(this, rate)));
      views.push(...FIRST.filter(has).map((name) => metricView(this, name, "half")));
      views.push(...sensorNames(run).map((name) => metricView(this, name, "third", { height: 170 })));
      views.push(anyView(this));
    } else views.push(eventsView(this));
    views.push(boardsView(this), partitionView(this), recipeView(this));
    this.seen.disconnect();
    this.views = views;
    for (const view of views) view.element.querySelector(".card-head").append(saveButtons(this, view));
    fillRows(views.map((v) => v.element));
    document.getElementById("main").replaceChildren(...views.map((v) => v.element));
    for (const view of views) view.stale = true;
    for (const view of views) {
      view.visible = view.element.getBoundingClientRect().top < innerHeight; // drawn at once, so that nothing moves when it is
      if (view.visible) this.draw((v) => v === view);
      this.seen.observe(view.element);
    }
    this.drawSoon();
  }

  dirty(views = this.views) {
    views.forEach((v) => {
      v.stale = true;
    });
    this.drawSoon();
  }

  drawSoon() {
    if (this.waiting) return;
    this.waiting = true;
    requestAnimationFrame(() => {
      this.waiting = false;
      this.draw((v) => v.visible);
    });
  }

  draw(which) {
    this.views
      .filter((v) => v.stale && which(v))
      .forEach((v) => {
        v.stale = false;
        v.draw();
        for (const box of v.element.querySelectorAll(".scroll")) box.tabIndex = box.scrollWidth > box.clientWidth ? 0 : -1;
      });
  }

  // What is out of sight is drawn when there is time, a card at a time, so that it has its height before it comes into sight.
  drawRest() {
    const view = this.views.find((v) => v.stale);
    if (!view) return;
    this.draw((v) => v === view);
    setTimeout(() => this.drawRest(), 20);
  }

  zoom(a, b) {
    const last = this.run.length - 1;
    const [from, to] =
      a === null ? [0, last] : [Math.max(0, Math.min(a, last - 1)), Math.min(last, Math.max(b, a + 1))];
    Object.assign(this.state, { from: Math.max(0, from), to, whole: from <= 0 && to >= last });
    this.told();
    this.onZoom();
    this.dirty();
  }

  // More of the run that is chosen, which goes on. Of the others there is nothing but what compares runs: dirty(this.across).
  grown() {
    if (this.state.whole) Object.assign(this.state, { from: 0, to: this.run.length - 1 });
    if (this.signature() !== this.shape) {
      for (const node of this.run.nodes) if (!this.offered.has(node)) this.state.chosen.add(node);
      this.offered = new Set(this.run.nodes);
      this.shape = this.signature();
      renderControls(this);
      this.build();
    } else {
      this.onZoom();
      this.dirty();
    }
    renderHead(this);
  }
}

// No holes in the grid: of neighbouring cards of one size those that do not fill a row become wider.
function fillRows(cards) {
  const group = (size) => (card) => card.classList.contains(size);
  const widen = (run, from, to) => run.forEach((card) => card.classList.replace(from, to));
  for (let a = 0, b; a < cards.length; a = b) {
    const size = ["third", "half", "full"].find((s) => group(s)(cards[a])),
      same = group(size);
    for (b = a + 1; b < cards.length && same(cards[b]);) b++;
    const n = b - a;
    if (size === "third" && n % 3)
      widen(cards.slice(n % 3 === 2 ? b - 2 : Math.max(a, b - 4), b), "third", n === 1 ? "full" : "half");
    if (size === "half" && n % 2) widen([cards[b - 1]], "half", "full");
  }
}
