// Downloads of a card: its figure as SVG, light and without a title, for a paper or a slide; its numbers as CSV, all of them that are chosen.

function saveButtons(app, view) {
  const title = view.element.querySelector("h2").textContent,
    file = `${app.runs.length > 1 && app.across.includes(view) ? "runs" : app.run.doc.name}-${view.element.id}`,
    button = (text, make, kind) =>
      h(
        "button",
        {
          type: "button",
          class: "save",
          "aria-label": `${title} as ${text}`,
          title: `download as ${text}`,
          onclick: async () => download(`${file}.${text.toLowerCase()}`, await make(), kind),
        },
        text,
      );
  return h(
    "div",
    { class: "saves" },
    view.element.querySelector(".plot, .bars, .links") && button("SVG", () => inLight(view, () => picture(view)), "image/svg+xml"),
    button("CSV", () => csvText(rowsOf(view)), "text/csv;charset=utf-8"),
  );
}

function download(name, text, kind) {
  const url = URL.createObjectURL(new Blob([text], { type: kind }));
  h("a", { href: url, download: name.replace(/[^\w.-]+/g, "_") }).click();
  setTimeout(() => URL.revokeObjectURL(url), 10000);
}

// Numbers

const rowsOf = (view) => {
  if (view.rows) return view.rows();
  if (!view.chart?.data || view.chart.empty) return tableRows(view.element);
  const { x, from, to, series, xLabel } = view.chart.data,
    shown = series.filter((s) => !s.quiet),
    rows = [[xLabel || "x", ...shown.map((s) => s.label)]];
  for (let i = from; i <= to; i++) {
    const values = shown.map((s) => (s.value ? s.value(i) : s.y[i]));
    if (values.some(known)) rows.push([x[i], ...values]);
  }
  return rows;
};

const tableRows = (card) => [...card.querySelectorAll("tr")].map((row) => [...row.cells].map((cell) => cell.textContent));

// Text that a spreadsheet would calculate begins with ', as in `report --csv`.
function csvText(rows) {
  const cell = (v) => {
    if (!known(v)) return "";
    if (typeof v === "number") return String(Number.isInteger(v) ? v : +v.toPrecision(7));
    const text = /^[=+\-@]./.test(v) && !Number.isFinite(+v) ? `'${v}` : String(v);
    return /[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  return rows.map((row) => row.map(cell).join(",") + "\n").join("");
}

// Figures

async function inLight(view, make) {
  const root = document.documentElement.dataset,
    theme = root.theme;
  root.theme = "light";
  view.draw();
  await null; // uPlot places its axes in a microtask
  try {
    return make();
  } finally {
    root.theme = theme;
    view.draw();
  }
}

// What a card shows below its head: boxes and words where the browser has put them, plots drawn again as lines.
function picture(view) {
  const card = view.element.getBoundingClientRect(),
    top = view.element.querySelector(".card-head").getBoundingClientRect().bottom,
    shown = [...view.element.children].filter((child) => child.offsetHeight && !child.matches(".card-head, .more")),
    height = Math.max(...shown.map((child) => child.getBoundingClientRect().bottom)) - top + 8,
    out = s("svg", { xmlns: SVG, width: card.width, height, viewBox: `0 0 ${card.width} ${height}` });
  out.append(s("title", {}, view.element.querySelector("h2").textContent), textures());
  out.append(s("rect", { width: "100%", height: "100%", fill: css("--card") }));
  const walk = (element) => {
    if (element.matches("details, button, [hidden]")) return;
    const box = element.getBoundingClientRect(),
      at = { x: box.left - card.left, y: box.top - top, width: box.width, height: box.height };
    if (element.matches(".uplot")) out.append(lines(view.chart, at));
    else if (element instanceof SVGElement) out.append(standalone(element, at));
    else {
      out.append(...boxOf(element, at));
      for (const node of element.childNodes)
        if (node.nodeType === Node.ELEMENT_NODE) walk(node);
        else if (node.nodeType === Node.TEXT_NODE && node.data.trim()) out.append(...words(node, card.left, top));
    }
  };
  shown.forEach(walk);
  return new XMLSerializer().serializeToString(out);
}

const PAINTED = ["transmit", "wait"]; // parts with a texture

// Those textures for SVG, with their colours: also of the Gantt chart.
const textures = () =>
  tree("defs", {}, [
    tree("pattern", { id: "transmit", width: 5, height: 5, patternUnits: "userSpaceOnUse" }, [
      s("path", { d: "M0 0h5v5H0z", style: `fill: ${css("--transmit")}` }),
      s("circle", { cx: 2.5, cy: 2.5, r: 0.9, style: `fill: ${css("--card")}` }),
    ]),
    tree("pattern", { id: "wait", width: 5, height: 5, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" }, [
      s("path", { d: "M0 0h5v5H0z", style: `fill: ${css("--wait")}` }),
      s("path", { d: "M0 0h1.5v5H0z", style: `fill: ${css("--card")}; fill-opacity: .6` }),
    ]),
  ]);

function tree(tag, attributes, children) {
  const element = s(tag, attributes);
  element.append(...children);
  return element;
}

function boxOf(element, at) {
  const style = getComputedStyle(element),
    out = [],
    textured = PAINTED.find((part) => element.classList.contains(part));
  if (style.backgroundColor !== "rgba(0, 0, 0, 0)") out.push(s("rect", { ...at, fill: style.backgroundColor, "fill-opacity": style.opacity }));
  else if (style.backgroundImage.includes("gradient")) out.push(...shades(at, element.dataset.shades));
  if (textured) out.push(s("rect", { ...at, fill: `url(#${textured})` }));
  if (element.matches("i.line"))
    out.push(
      s("line", {
        x1: at.x, x2: at.x + at.width, y1: at.y + 1, y2: at.y + 1, stroke: style.borderTopColor, "stroke-width": 3,
        "stroke-dasharray": style.borderTopStyle === "dashed" ? "5 3" : "none",
      }),
    );
  return out;
}

const shades = (at, colors) =>
  (colors || "").split("|").filter((c) => c).map((fill, k, all) => s("rect", { ...at, x: at.x + (k * at.width) / all.length, width: at.width / all.length, fill }));

// A text in the lines that the browser broke it into.
function words(node, left, top) {
  const style = getComputedStyle(node.parentElement),
    upright = style.writingMode === "vertical-rl",
    font = { fill: style.color, "font-size": style.fontSize, "font-weight": style.fontWeight, "font-family": "sans-serif" },
    range = document.createRange(),
    broken = [];
  for (const { index, 0: word } of node.data.matchAll(upright ? /\S(.*\S)?/gs : /\S+/g)) {
    range.setStart(node, index);
    range.setEnd(node, index + word.length);
    const box = range.getBoundingClientRect(),
      last = broken.at(-1);
    if (last && Math.abs(last.box.bottom - box.bottom) < 2) last.text += ` ${word}`;
    else broken.push({ text: word, box });
  }
  return broken.map(({ text, box }) => {
    const x = box.left - left + (upright ? box.width * 0.75 : 0),
      y = box.bottom - top - (upright ? 0 : box.height * 0.24);
    return s("text", { x, y, ...font, ...(upright && { transform: `rotate(-90 ${x} ${y})` }) }, text);
  });
}

// A drawing of the page with the colours that its style sheet gives it.
function standalone(svg, at) {
  const copy = svg.cloneNode(true),
    from = [svg, ...svg.querySelectorAll("*")];
  [copy, ...copy.querySelectorAll("*")].forEach((element, k) => {
    const { fill, stroke, fontSize } = getComputedStyle(from[k]);
    element.style.fill = fill.replaceAll('"', "");
    if (stroke !== "none") element.style.stroke = stroke;
    if (element.tagName === "text") Object.assign(element.style, { fontSize, fontFamily: "sans-serif" });
  });
  for (const [name, value] of Object.entries(at)) copy.setAttribute(name, value);
  return copy;
}

// A plot as lines; its points are those that are drawn.
function lines({ plot: u, data }, at) {
  const unit = devicePixelRatio || 1,
    box = Object.fromEntries(Object.entries(u.bbox).map(([k, v]) => [k, v / unit])),
    X = (v) => +(box.left + u.valToPos(v, "x")).toFixed(2),
    Y = (v) => +(box.top + u.valToPos(v, "y")).toFixed(2),
    out = s("svg", { ...at, overflow: "visible" }),
    clip = `clip-${Math.round(at.x)}-${Math.round(at.y)}`,
    inner = s("g", { "clip-path": `url(#${clip})` }),
    font = { "font-size": 11, "font-family": "sans-serif", fill: css("--muted") };
  out.append(tree("clipPath", { id: clip }, [s("rect", { x: box.left, y: box.top - 2, width: box.width, height: box.height + 4 })]));
  const [xs, ys] = u.axes;
  xs._splits.forEach((v, k) => xs._values[k] && out.append(s("text", { ...font, x: X(v), y: box.top + box.height + 16, "text-anchor": "middle" }, xs._values[k])));
  ys._splits.forEach((v, k) => {
    if (!ys._values[k]) return;
    out.append(s("line", { x1: box.left, x2: box.left + box.width, y1: Y(v), y2: Y(v), stroke: css("--grid") }));
    out.append(s("text", { ...font, x: box.left - 7, y: Y(v) + 4, "text-anchor": "end" }, ys._values[k]));
  });
  if (data.xLabel) out.append(s("text", { ...font, x: box.left + box.width / 2, y: box.top + box.height + 32, "text-anchor": "middle" }, data.xLabel));
  const points = (k) => Array.from(u.data[0], (x, i) => [x, u.data[k][i]]);
  const path = (pairs, gaps) => {
    let on = false;
    return pairs
      .map(([x, y]) => {
        if (!known(y)) {
          on = on && gaps;
          return "";
        }
        const step = `${on ? "L" : "M"}${X(x)} ${Y(y)}`;
        on = true;
        return step;
      })
      .join("");
  };
  const there = (k) => points(k).filter(([, y]) => known(y));
  for (const { series: [high, low], fill } of data.bands || [])
    inner.append(s("path", { d: `${path([...there(high), ...there(low).reverse()], true)}Z`, fill: fill.slice(0, 7), "fill-opacity": 0.2 }));
  data.series.forEach((one, k) => {
    const own = points(k + 1),
      some = there(k + 1);
    if (one.fill && some.length) {
      const area = { d: `${path(some, true)}L${X(some.at(-1)[0])} ${Y(0)}L${X(some[0][0])} ${Y(0)}Z` };
      inner.append(s("path", { ...area, fill: one.fill }));
      if (one.texture) inner.append(s("path", { ...area, fill: `url(#${one.texture})` }));
    } else if (one.width !== 0)
      inner.append(
        s("path", {
          d: path(own, one.spanGaps), fill: "none", stroke: one.color, "stroke-width": one.width ?? 1.4, "stroke-opacity": one.faint ? 0.3 : 1,
          "stroke-dasharray": one.dash?.length ? one.dash.join(" ") : "none", "stroke-linejoin": "round",
        }),
      );
    if (one.dots) for (const [x, y] of some) inner.append(s("circle", { cx: X(x), cy: Y(y), r: 2, fill: one.color }));
  });
  for (const mark of inSight(data))
    for (const [dash, ...points] of markLines(mark, X(data.x[mark.at]), box.top, box.top + box.height, 3))
      inner.append(
        s("path", {
          d: `M${points.map((point) => point.join(" ")).join("L")}`, fill: "none", stroke: markStyle(mark).color, "stroke-width": 1.5,
          "stroke-dasharray": dash.join(" ") || "none",
        }),
      );
  out.append(inner);
  return out;
}
