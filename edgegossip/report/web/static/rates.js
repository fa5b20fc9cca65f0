// Of each link, over time, where the codec is auto: the bits a value that a board sends over it, and the speed that it measured.

const RATES = [
  ["_bits", "Rate of each link", "bits a value of the messages to that neighbour", numberText],
  ["_mbit", "Speed of each link", "what it carried, as its board measured it", (v, more) => `${numberText(v, more)} Mbit/s`],
];

const hasRates = (run) => [...run.names].some((name) => name.startsWith("rate/"));

function ratesView(app, [end, title, words, text]) {
  const box = h("div", { class: "plot" }),
    legend = h("div", { class: "legend" });
  const card = app.card(`rates${end.replace("_", "-")}`, title, "half", h("p", { class: "note" }, words), legend, box);
  const chart = new Chart(box, {
    label: title,
    xText: app.xText,
    yText: text,
    zoomed: app.zoomed,
    sync: "x",
    height: 210,
  });
  const draw = () => {
    const series = [],
      window = +app.state.smooth;
    for (const name of [...app.run.names].filter((n) => n.startsWith("rate/") && n.endsWith(end)).sort())
      for (const k of app.run.shown(name, app.state.chosen))
        series.push({
          label: `${app.run.nodes[k]} → ${name.slice(5, -end.length)}`,
          y: window ? app.run.smoothed(`${name} ${k}`, app.run.matrix(name)[k], window) : app.run.matrix(name)[k],
          kind: "both",
          color: ink(series.length),
          dash: inkDash(series.length),
          width: 1.3,
        });
    legend.replaceChildren(...legendOf(series));
    chart.draw({ ...app.axis(), series, bands: [] });
  };
  return { element: card.element, draw, chart };
}
