// What is chosen: run, axis, rounds, boards, light or dark.

function renderControls(app) {
  const { state, run } = app,
    chips = h("div", { class: "chips", role: "group", "aria-label": "boards" });
  const press = () => {
    chips
      .querySelectorAll(".chip[data-node]")
      .forEach((c) => c.setAttribute("aria-pressed", String(state.chosen.has(c.dataset.node))));
    app.dirty();
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
        h("i", { class: boardDash(i).length ? "dashed" : "", style: { borderTopColor: boardColor(i) } }),
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
      onchange: (e) => {
        state.every = e.target.checked;
        app.dirty();
      },
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
        { onchange: (e) => app.select(Number(e.target.value)) },
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
      (x) => {
        state.x = x;
        app.dirty();
      },
    ),
  );
  document.getElementById("controls").replaceChildren(h("div", {}, which, axis, brush(app), every, chips));
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
  const set = (dark) => {
    root.dataset.theme = dark ? "dark" : "light";
    if (app.run) {
      renderControls(app);
      app.dirty();
    }
  };
  let chosen = null;
  set(system.matches);
  system.addEventListener("change", () => chosen === null && set(system.matches));
  document.getElementById("theme").addEventListener("click", () => {
    chosen = !isDark();
    set(chosen);
  });
  addEventListener("beforeprint", () => {
    Object.assign(root.dataset, { theme: "light", print: "1" });
    app.dirty();
    app.draw(() => true);
  });
  addEventListener("afterprint", () => {
    delete root.dataset.print;
    set(chosen ?? system.matches);
  });
}
