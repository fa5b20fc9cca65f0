// What happened, what was run, on what.

const SHOWN_EVENTS = 400;

function eventsView(app) {
  const box = h("div", { class: "events", tabindex: 0, role: "region", "aria-label": "list of events" }),
    note = h("p", { class: "note" });
  const card = app.card("events", "Events", "half", note, box);
  card.head.append(
    segmented(
      "events shown",
      [
        ["all", "all"],
        ["alarms", "alarms"],
      ],
      app.state.events,
      (events) => app.set({ events }),
    ),
  );
  const draw = () => {
    const which = app.state.events,
      all = app.run.events.filter((e) => app.picked(e.node)),
      found = which === "alarms" ? all.filter((e) => app.alarms.has(e.event)) : all,
      shown = found.slice(-SHOWN_EVENTS);
    note.textContent =
      `${found.length} of ${app.run.events.length}, in seconds since the first board began` +
      (shown.length < found.length ? `, the last ${shown.length} are shown` : "");
    box.replaceChildren(
      shown.length
        ? h(
            "table",
            {},
            h(
              "tbody",
              {},
              shown.map((e) =>
                h(
                  "tr",
                  { class: app.alarms.has(e.event) ? "alarm" : null },
                  h("td", {}, secondsText(e.t_s)),
                  h("td", {}, e.node),
                  h("td", {}, e.event),
                  h("td", {}, e.text),
                ),
              ),
            ),
          )
        : h("p", { class: "empty" }, which === "alarms" ? "nothing alarming happened" : "no events"),
    );
    box.style.minHeight = `${Math.min(320, box.firstChild.offsetHeight + 2)}px`;
  };
  return { element: card.element, draw };
}

// Of how many rounds a board's energy is: a sensor that failed leaves rounds without.
const measuredText = (b) => (b.energy_rounds && b.energy_rounds < b.rounds ? ` (${b.energy_rounds} of ${b.rounds} rounds)` : "");

function boardsView(app) {
  const box = h("div", {});
  const card = app.card("boards", "Boards", "full", box);
  const draw = () => {
    const run = app.run,
      peak = (node, name) => {
        const column = run.tables[node]?.[name];
        return column ? column.reduce((a, v) => (v > a ? v : a), -Infinity) : null;
      };
    const sensors = [
      ["sys/temperature_c", "hottest"],
      ["sys/energy_j", "energy"],
    ].filter(([name]) => run.has(name));
    const value = (node, name) =>
      name === "sys/energy_j" ? run.sum(name, run.nodes.indexOf(node), 0, run.length) : peak(node, name);
    const score = run.doc.summary.score,
      rows = run.doc.summary.boards,
      text = scoreText(score),
      beside = [
        ["alone", "alone"],
        ["average", "average of models"],
      ].filter(([key]) => score && rows.some((b) => b[key] && score in b[key]));
    box.replaceChildren(
      table(
        [
          "board",
          "state",
          "rounds",
          isScore(score) ? score : "test loss",
          ...beside.map(([, word]) => word),
          "sent",
          "CPU",
          "peak memory",
          ...sensors.map(([, word]) => word),
        ],
        rows.map((b) => ({
          gone: app.gone(b.node),
          cells: [
            b.node,
            b.state + (b.restarts ? `, ${b.restarts} × restarted` : "") + (b.why ? `: ${b.why}` : ""),
            b.rounds,
            score ? text(b.scores[score]) : numberText(b.loss),
            ...beside.map(([key]) => text(b[key]?.[score])),
            bytesText(b.sent_bytes.socket ?? b.sent_bytes.payload),
            secondsText(b.cpu_s),
            bytesText(b.peak_rss_bytes),
            ...sensors.map(([name]) =>
              run.nodes.includes(b.node)
                ? unitOf(name)(value(b.node, name)) + (name === "sys/energy_j" ? measuredText(b) : "")
                : "–",
            ),
          ],
        })),
      ),
    );
  };
  return { element: card.element, draw };
}

// Which board has which classes: shares of its examples.
function partitionView(app) {
  const body = h("div", { class: "bars", role: "list" }),
    more = h("div", { class: "more" }),
    legend = h("div", { class: "legend" });
  const card = app.card("partition", "Who has which training examples", "half", legend, body, more);
  const draw = () => {
    const p = app.run.doc.partition;
    if (!p) {
      body.replaceChildren(h("p", { class: "empty", role: "listitem" }, "not recorded"));
      legend.replaceChildren();
      more.replaceChildren();
      return;
    }
    const sums = p.counts.map((row) => row.reduce((a, b) => a + b, 0)),
      widest = Math.max(...sums, 1),
      opacity = (c) => (c < MADE.series.light.length ? 1 : 0.55);
    legend.replaceChildren(
      ...(p.classes.length <= 12
        ? p.classes.map((name, c) =>
            h("span", {}, h("i", { style: { background: ink(c), opacity: opacity(c) } }), name),
          )
        : [h("span", {}, `${p.classes.length} classes`)]),
    );
    body.replaceChildren(
      ...p.nodes.flatMap((node, k) =>
        app.picked(node)
          ? [
              h("div", { class: `name ${app.gone(node) ? "gone" : ""}` }, node, app.fate(node)),
              h(
                "div",
                {
                  role: "listitem",
                  "aria-label": `${node}: ${p.counts[k].map((n, c) => `${n} of ${p.classes[c]}`).join(", ")}`,
                },
                h(
                  "div",
                  {
                    class: "bar",
                    style: { width: `${(100 * sums[k]) / widest}%` },
                    onpointermove: (e) =>
                      showTip(
                        e.clientX,
                        e.clientY,
                        node,
                        p.counts[k].map((n, c) => [ink(c), p.classes[c], n]),
                      ),
                    onpointerleave: hideTip,
                  },
                  p.counts[k].map((n, c) =>
                    h("span", {
                      style: { flex: `${n} 0 0`, background: ink(c), opacity: opacity(c) },
                    }),
                  ),
                ),
              ),
              h("div", { class: "total" }, sums[k]),
            ]
          : [],
      ),
    );
    more.replaceChildren(
      later("as a table", () =>
        table(
          ["board", ...p.classes, "sum"],
          p.nodes.map((node, k) => ({ gone: app.gone(node), cells: [node, ...p.counts[k], sums[k]] })),
        ),
      ),
    );
  };
  return { element: card.element, draw };
}

function recipeView(app) {
  const box = h("div", {});
  const card = app.card("recipe", "Recipe and machine", "half", box);
  const draw = () => {
    const { env, recipe, topology } = app.run.doc,
      lines = Object.entries(env || {}).map(
        ([name, value]) =>
          `${name}: ${
            typeof value === "object"
              ? Object.entries(value)
                  .map(([k, v]) => `${k} ${v ?? "–"}`)
                  .join(", ")
              : name.endsWith("_bytes")
                ? bytesText(value)
                : value
          }`,
      );
    if (topology)
      lines.push(
        `topology: ${topology.name}, ${topology.edges.length} directed edges, spectral gap ${numberText(topology.spectral_gap)}`,
      );
    box.replaceChildren(
      h(
        "p",
        { class: "note" },
        lines.map((line) => [line, h("br")]),
      ),
      h("details", {}, h("summary", {}, "the recipe, resolved"), h("pre", {}, recipe || "not recorded")),
    );
  };
  const rows = () => [["key", "value"], ...Object.entries(app.run.doc.settings)];
  return { element: card.element, draw, rows };
}
