// What is chosen: run, axis, rounds, boards, light or dark.

function renderControls(app) {
  const { state, run } = app,
    chips = h("div", { class: "chips", role: "group", "aria-label": "boards" });
  const press = () => {
    chips
      .querySelectorAll(".chip[data-node]")
      .forEach((c) => c.setAttribute("aria-pressed", String(state.chosen.has(c.dataset.node))));
    app.set({});
  };
  const toggle = (node, only) => {
    if (only) state.chosen = new Set([node]);
    else if (!state.chosen.delete(node)) state.chosen.add(node);
    if (!state.chosen.size) state.chosen = new Set(run.nodes);
    press();
  };
  chips.append(
    h(
      "button",
      {
        type: "button",
        class: "chip",
        onclick: () => {
          state.chosen = new Set(run.nodes);
          press();
        },
      },
      "all boards",
    ),
    ...run.boards.map((k, i) =>
      h(
        "button",
        {
          type: "button",
          class: `chip ${app.gone(run.nodes[k]) ? "gone" : ""}`,
          "data-node": run.nodes[k],
          "aria-pressed": String(state.chosen.has(run.nodes[k])),
          title: "click: on or off; double click: only this one",
          onclick: () => toggle(run.nodes[k], false),
          ondblclick: () => toggle(run.nodes[k], true),
        },
        h("i", { class: inkDash(i).length ? "dashed" : "", style: { borderTopColor: ink(i) } }),
        run.nodes[k],
      ),
    ),
  );
  const every = h(
    "label",
    { class: "field" },
    h("input", {
      type: "checkbox",
      checked: state.every,
      onchange: (e) => app.set({ every: e.target.checked }),
    }),
    "a line a board",
  );
  const which =
    app.runs.length > 1 &&
    h(
      "label",
      { class: "field" },
      "run",
      h(
        "select",
        { onchange: (e) => app.select(Number(e.target.value)), "aria-label": "run" },
        app.runs.map((r, k) => h("option", { value: k, selected: k === state.run }, `${k + 1}. ${shortName(r)}`)),
      ),
    );
  const axis = h(
    "div",
    { class: "field" },
    "against",
    segmented(
      "horizontal axis",
      [
        ["round", "rounds"],
        ["seconds", "seconds"],
        ["bytes", "bytes"],
      ],
      state.x,
      (x) => app.set({ x }),
    ),
  );
  const log = h(
    "div",
    { class: "field" },
    "log",
    h(
      "div",
      { class: "seg", role: "group", "aria-label": "logarithmic axes" },
      [
        ["x", "across"],
        ["y", "up"],
      ].map(([way, text]) =>
        h(
          "button",
          {
            type: "button",
            "data-log": way,
            "aria-pressed": String(state.log.includes(way)),
            onclick: (e) => {
              const log = ["x", "y"].filter((one) => state.log.includes(one) !== (one === way)).join("");
              e.currentTarget.setAttribute("aria-pressed", String(log.includes(way)));
              app.set({ log });
            },
          },
          text,
        ),
      ),
    ),
  );
  const smooth = h(
    "label",
    { class: "field" },
    "smooth",
    h(
      "select",
      { id: "smooth", onchange: (e) => app.set({ smooth: e.target.value }) },
      CHOICES.smooth.map((n) => h("option", { value: n, selected: n === state.smooth }, n === "0" ? "off" : `${n} rounds`)),
    ),
  );
  document.getElementById("controls").replaceChildren(h("div", {}, which, axis, log, smooth, brush(app), every, chips));
}

// From which round to which: two sliders on one track, two numbers, and back to all.
function brush(app) {
  const slide = (label) => h("input", { type: "range", min: 0, "aria-label": label, step: 1 }),
    low = slide("first round shown"),
    high = slide("last round shown");
  const number = (label) => h("input", { type: "number", min: 1, "aria-label": label }),
    first = number("from round"),
    last = number("to round"),
    fill = h("div", { class: "fill" });
  const place = (round) => {
    const i = app.run.steps.findIndex((step) => step + 1 >= round);
    return i < 0 ? app.run.length - 1 : i;
  };
  low.addEventListener("input", () => app.zoom(Math.min(+low.value, +high.value - 1), +high.value));
  high.addEventListener("input", () => app.zoom(+low.value, Math.max(+high.value, +low.value + 1)));
  first.addEventListener("change", () => app.zoom(place(+first.value), app.state.to));
  last.addEventListener("change", () => app.zoom(app.state.from, place(+last.value)));
  app.onZoom = () => {
    const { from, to } = app.state,
      end = Math.max(1, app.run.length - 1);
    for (const slider of [low, high]) slider.max = end;
    low.value = from;
    high.value = to;
    first.value = (app.run.steps[from] ?? 0) + 1;
    last.value = (app.run.steps[to] ?? 0) + 1;
    Object.assign(fill.style, { left: `${(100 * from) / end}%`, width: `${(100 * (to - from)) / end}%` });
  };
  app.onZoom();
  return h(
    "div",
    { class: "field range" },
    "rounds",
    first,
    h("div", { class: "brush" }, h("div", { class: "track" }), fill, low, high),
    last,
    h("button", { type: "button", onclick: () => app.zoom(null) }, "all"),
  );
}

function themed(app) {
  const root = document.documentElement,
    system = matchMedia("(prefers-color-scheme: dark)");
  app.themed = () => {
    root.dataset.theme = app.state?.theme || (system.matches ? "dark" : "light");
    if (app.run) {
      renderControls(app);
      app.dirty();
    }
  };
  app.themed();
  system.addEventListener("change", app.themed);
  document.getElementById("theme").addEventListener("click", () => {
    const dark = !isDark();
    app.set({ theme: dark === system.matches ? "" : dark ? "dark" : "light" });
    app.themed();
  });
  addEventListener("beforeprint", () => {
    Object.assign(root.dataset, { theme: "light", print: "1" });
    app.dirty();
    app.draw(() => true);
  });
  addEventListener("afterprint", () => {
    delete root.dataset.print;
    app.themed();
  });
}
