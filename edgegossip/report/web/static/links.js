// Who sent how much to whom, and how long it was under way: senders down, receivers across.

const LINK_MODES = [
  ["bytes", "bytes"],
  ["seconds", "seconds"],
  ["rate", "bytes a second"],
];

function linksView(app) {
  const box = h("div", { class: "links" }),
    note = h("p", { class: "note" });
  const card = app.card("links", "Links", "half", note, box);
  card.head.append(
    segmented("of each link", LINK_MODES, app.state.links, (links) => app.set({ links })),
  );
  const draw = () => {
    const doc = app.run.doc,
      mode = app.state.links,
      cells = new Map(
        doc.links.map(([from, to, bytes, seconds]) => [
          `${from}\n${to}`,
          { from, to, bytes, seconds, rate: seconds ? bytes / seconds : null },
        ]),
      );
    const names = app.run.nodes
      .concat(doc.links.flatMap(([from, to]) => [from, to]))
      .filter((name, k, all) => all.indexOf(name) === k);
    if (!cells.size) {
      note.textContent = "";
      box.replaceChildren(h("p", { class: "empty" }, "what went over each link was not recorded in this run"));
      return;
    }
    note.textContent =
      doc.links_of === "links"
        ? "Frames and the messages around them, over the whole run; seconds in which something was under way."
        : "Boards’ sockets over the whole run; seconds are the board’s time in transmit, both ways together.";
    const text =
      mode === "bytes" ? bytesText : mode === "seconds" ? secondsText : (v) => (known(v) ? `${bytesText(v)}/s` : "–");
    const values = [...cells.values()].map((c) => c[mode]).filter(known),
      low = 0,
      high = Math.max(...values, 0);
    box.replaceChildren(
      h("div", { class: "scroll" }, heat(app, names, cells, mode, text, low, high), scale(text, low, high)),
      linkTable(cells, mode, text),
    );
  };
  const rows = () => [["sender", "receiver", "bytes", "seconds"], ...app.run.doc.links];
  return { element: card.element, draw, rows };
}

const shade = (v, low, high) =>
  `color-mix(in oklab, var(--hot) ${Math.round(12 + 88 * (high > low ? (v - low) / (high - low) : 1))}%, var(--cold))`;

function heat(app, names, cells, mode, text, low, high) {
  const cell = (from, to) => {
    const c = cells.get(`${from}\n${to}`);
    if (!c) return h("td", { class: from === to ? "self" : "none" });
    const words = `${from} to ${to}: ${bytesText(c.bytes)} in ${secondsText(c.seconds)}`;
    const show = (event) =>
      showTip(event.clientX, event.clientY, `${from} → ${to}`, [
        [null, "bytes", bytesText(c.bytes)],
        [null, "under way", secondsText(c.seconds)],
        [null, "rate", known(c.rate) ? `${bytesText(c.rate)}/s` : "–"],
      ]);
    return h("td", {
      "aria-label": words,
      style: { background: known(c[mode]) ? shade(c[mode], low, high) : "none" },
      onpointermove: show,
      onpointerleave: hideTip,
    });
  };
  return h(
    "table",
    { class: "heat" },
    h("caption", { hidden: true }, "senders down, receivers across"),
    h(
      "thead",
      {},
      h(
        "tr",
        {},
        h("td", {}),
        names.map((name) => h("th", { scope: "col" }, h("span", {}, name))),
      ),
    ),
    h(
      "tbody",
      {},
      names.map((from) =>
        h(
          "tr",
          {},
          h("th", { scope: "row" }, from, app.fate(from)),
          names.map((to) => cell(from, to)),
        ),
      ),
    ),
  );
}

const scale = (text, low, high) =>
  h(
    "div",
    { class: "scale" },
    text(low),
    h("i", {
      "data-shades": [0, 0.25, 0.5, 0.75, 1].map((v) => shade(v, 0, 1)).join("|"),
      style: { background: `linear-gradient(90deg, ${shade(0, 0, 1)}, ${shade(1, 0, 1)})` },
    }),
    text(high),
  );

function linkTable(cells, mode, text) {
  const all = [...cells.values()].sort((a, b) =>
    mode === "rate" ? (a.rate ?? Infinity) - (b.rate ?? Infinity) : (b[mode] ?? 0) - (a[mode] ?? 0),
  );
  const word = mode === "rate" ? "slowest" : mode === "seconds" ? "longest under way" : "busiest";
  return h(
    "div",
    {},
    h("p", { class: "note" }, `the ${Math.min(6, all.length)} ${word} links`),
    table(
      ["link", mode === "rate" ? "a second" : mode],
      all.slice(0, 6).map((c) => ({ cells: [`${c.from} → ${c.to}`, text(c[mode])] })),
    ),
  );
}
