// Line plots: uPlot draws, and this file thins, colours, zooms, explains. What a plot shows is a list of series
// {label, y, color, dash, fill, texture, kind}: y is as long as x; kind says what stands for many points in one place.

const MADE = JSON.parse(document.getElementById("page-made").textContent); // style.py has the colours
const isDark = () => document.documentElement.dataset.theme === "dark";
const DASHES = [[], [6, 4], [2, 3], [9, 3, 2, 3]];
const ink = (k) => MADE.series[isDark() ? "dark" : "light"][k % MADE.series.light.length];
const inkDash = (k) => DASHES[Math.floor(k / MADE.series.light.length) % DASHES.length];

// Transmitting is dotted and waiting is hatched, on bars (page.css) and here.
function textured(part) {
  const canvas = document.createElement("canvas"),
    unit = devicePixelRatio || 1,
    size = (canvas.width = canvas.height = Math.round(5 * unit)),
    at = canvas.getContext("2d");
  at.fillStyle = css(`--${part}`);
  at.fillRect(0, 0, size, size);
  at.fillStyle = at.strokeStyle = css("--card");
  at.beginPath();
  if (part === "transmit") at.arc(size / 2, size / 2, 0.9 * unit, 0, 7);
  else {
    at.globalAlpha = 0.6;
    at.lineWidth = 1.2 * unit;
    for (const shift of [-size, 0, size]) {
      at.moveTo(shift, size);
      at.lineTo(shift + size, 0);
    }
    at.stroke();
  }
  at.fill();
  return at.createPattern(canvas, "repeat");
}

// Indices from..to cut into stretches: the last index of each, as few as `most`.
function stretches(from, to, most) {
  const n = to - from + 1,
    count = Math.max(1, Math.min(n, most)),
    ends = new Int32Array(count);
  for (let b = 0; b < count; b++) ends[b] = from + Math.floor(((b + 1) * n) / count) - 1;
  return ends;
}

const REDUCE = {
  mean(y, a, b) {
    let s = 0,
      n = 0;
    for (let i = a; i <= b; i++) {
      const v = y[i];
      if (v === v) {
        s += v;
        n++;
      }
    }
    return n ? [s / n, s / n] : [null, null];
  },
  min(y, a, b) {
    let lo = Infinity;
    for (let i = a; i <= b; i++) if (y[i] < lo) lo = y[i];
    return lo < Infinity ? [lo, lo] : [null, null];
  },
  max(y, a, b) {
    let hi = -Infinity;
    for (let i = a; i <= b; i++) if (y[i] > hi) hi = y[i];
    return hi > -Infinity ? [hi, hi] : [null, null];
  },
  last(y, a, b) {
    for (let i = b; i >= a; i--) if (y[i] === y[i]) return [y[i], y[i]];
    return [null, null];
  },
  both(y, a, b) {
    let lo = Infinity,
      hi = -Infinity,
      first = 0,
      second = 0;
    for (let i = a; i <= b; i++) {
      const v = y[i];
      if (v < lo) {
        lo = v;
        first = i;
      }
      if (v > hi) {
        hi = v;
        second = i;
      }
    }
    return lo === Infinity ? [null, null] : first <= second ? [lo, hi] : [hi, lo];
  },
};

// x and the series over indices from..to, in as many points as can be seen.
function thinned(x, series, from, to, width) {
  const plain = to - from + 1 <= 2 * width;
  const ends = plain ? null : stretches(from, to, Math.max(40, Math.floor(width / 1.5)));
  const size = plain ? to - from + 1 : 2 * ends.length;
  const out = [new Float64Array(size), ...series.map(() => new Array(size))];
  if (plain) {
    for (let i = 0; i < size; i++) out[0][i] = x[from + i];
    series.forEach(({ y }, s) => {
      for (let i = 0; i < size; i++) {
        const v = y[from + i];
        out[s + 1][i] = v === v ? v : null;
      }
    });
    return out;
  }
  for (let b = 0, a = from; b < ends.length; a = ends[b] + 1, b++) {
    out[0][2 * b] = x[a];
    out[0][2 * b + 1] = x[ends[b]];
    series.forEach(({ y, kind }, s) => {
      [out[s + 1][2 * b], out[s + 1][2 * b + 1]] = REDUCE[kind || "both"](y, a, ends[b]);
    });
  }
  return out;
}

class Chart {
  // spec: {label, xText, yText, zoomed(i0, i1) | null, height}
  constructor(box, spec) {
    this.box = box;
    this.spec = { height: 230, ...spec };
    this.plot = null;
    box.style.minHeight = `${this.spec.height}px`;
    box.tabIndex = 0;
    box.setAttribute("role", "img");
    box.setAttribute("aria-label", `${spec.label}. Left and right arrows read values, plus and minus zoom.`);
    box.addEventListener("keydown", (event) => this.key(event));
    box.addEventListener("blur", hideTip);
  }

  // data: {x, series, from, to, bands, most, free, log, marks}; bands [[high, low]] are filled between two of the series, marks
  // [{at, kind, text}] are lines down the plot at places of x. log: "x", "y" or "xy", axes on which there is nothing at or below 0.
  draw(data) {
    const width = Math.max(160, this.box.clientWidth);
    data.log = (data.log || "").replace(data.free || data.share || data.stacked ? "y" : "", "");
    if (data.log.includes("x")) while (data.from < data.to && !(data.x[data.from] > 0)) data.from++;
    this.empty = !data.series.length || data.to < data.from;
    if (this.empty) {
      this.clear();
      this.box.replaceChildren(
        h("p", { class: "empty" }, edgegossip.run.pending ? "" : "nothing measured"),
      );
      return;
    }
    this.data = data;
    this.base = data.from;
    const points = thinned(data.x, data.series, data.from, data.to, width);
    if (data.log.includes("y"))
      points.slice(1).forEach((y, k) => y.forEach((v, i) => v <= 0 && (points[k + 1][i] = null)));
    this.clear();
    this.box.replaceChildren();
    this.plot = new uPlot(this.options(width, data, points), points, this.box);
  }

  clear() {
    if (this.plot) this.plot.destroy();
    this.plot = null;
  }

  options(width, data, points) {
    const muted = css("--muted"),
      grid = { stroke: css("--grid"), width: 1 },
      ticks = { stroke: css("--line"), size: 4, width: 1 };
    const font = "12px system-ui, sans-serif",
      axis = { stroke: muted, font, grid, ticks };
    const single = points[0].length < 60,
      marks = inSight(data);
    return {
      width,
      height: this.spec.height,
      legend: { show: false },
      scales: {
        x: {
          time: false,
          distr: data.log.includes("x") ? 3 : 1,
          range: (u, lo, hi) => data.log.includes("x") ? uPlot.rangeLog(lo, hi, 10, false) : lo === hi ? [lo - 0.5, hi + 0.5] : [lo, hi],
        },
        y: { distr: data.log.includes("y") ? 3 : 1, range: (u, lo, hi) => yRange(lo, hi, data) },
      },
      cursor: {
        drag: { x: true, y: false, setScale: false },
        points: { size: 6 },
        y: false,
        sync: this.spec.sync ? { key: this.spec.sync, scales: ["x", null], setSeries: false } : undefined,
      },
      axes: [
        {
          ...axis,
          values: (u, at) => tickTexts(at, (v, more) => this.spec.xText(v, true, more)),
          space: 62,
          size: 26,
          incrs: data.whole && !data.log.includes("x") ? WHOLE : undefined,
          label: data.xLabel,
          labelSize: data.xLabel ? 17 : 0,
          labelFont: font,
          labelGap: -2,
        },
        {
          ...axis,
          values: (u, at) => tickTexts(at, this.spec.yText),
          size: (u, values) => 14 + 6.4 * Math.max(3, ...(values || []).map((v) => v.length)),
          space: this.spec.height < 200 ? 24 : 34,
        },
      ],
      series: [
        {},
        ...data.series.map((s) => ({
          label: s.label,
          stroke: s.color,
          alpha: s.faint ? 0.3 : 1,
          width: s.width ?? 1.4,
          dash: s.dash,
          fill: s.texture ? () => textured(s.texture) : s.fill,
          spanGaps: s.spanGaps || false,
          points: { show: s.dots ?? (single && !s.fill), size: 4, fill: s.color, stroke: s.color },
        })),
      ],
      bands: data.bands || [],
      hooks: {
        draw: [(u) => drawMarks(u, marks, data.x)],
        setCursor: [(u) => this.hover(u)],
        setSelect: [(u) => this.selected(u)],
        ready: [
          (u) => {
            u.over.addEventListener("mouseleave", hideTip);
            u.over.addEventListener("dblclick", () => this.spec.zoomed && this.spec.zoomed(null));
            touchCursor(u);
          },
        ],
      },
    };
  }

  hover(u) {
    const i = u.cursor.idx;
    if (
      i === null ||
      i === undefined ||
      (!u.over.matches(":hover") && document.activeElement !== this.box && !u.touched)
    )
      return;
    const rows = this.data.series
      .map((s, k) => ({ s, v: u.data[k + 1][i] }))
      .filter(({ s, v }) => v !== null && v !== undefined && !s.quiet);
    if (this.data.sorted) rows.sort((a, b) => b.v - a.v);
    const bounds = u.over.getBoundingClientRect(),
      near = ({ at }) => Math.abs(u.valToPos(this.data.x[at], "x") - u.cursor.left) < 5;
    showTip(
      bounds.left + u.cursor.left,
      bounds.top + Math.min(60, bounds.height / 3),
      this.spec.xText(u.data[0][i], false),
      rows
        .map(({ s, v }) => [s.color, s.label, this.spec.yText(s.value ? s.value(this.indexOf(u.data[0][i])) : v)])
        .concat(inSight(this.data).filter(near).map((mark) => [markStyle(mark).color, mark.text, ""])),
    );
  }

  indexOf(x) {
    const { x: all, from, to } = this.data;
    let a = from,
      b = to;
    while (a < b) {
      const m = (a + b) >> 1;
      if (all[m] < x) a = m + 1;
      else b = m;
    }
    return a;
  }

  selected(u) {
    if (u.select.width < 6 || !this.spec.zoomed) return;
    const low = u.posToVal(u.select.left, "x"),
      high = u.posToVal(u.select.left + u.select.width, "x");
    u.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
    this.spec.zoomed(this.indexOf(low), this.indexOf(high));
  }

  key(event) {
    const u = this.plot,
      step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!u || (!step && !"+-".includes(event.key))) return;
    event.preventDefault();
    if (step) {
      const now = u.cursor.idx ?? 0,
        next = Math.max(0, Math.min(u.data[0].length - 1, now + step * (event.shiftKey ? 20 : 1)));
      u.setCursor({ left: u.valToPos(u.data[0][next], "x"), top: 10 });
    } else if (this.spec.zoomed) {
      const { from, to } = this.data,
        middle = this.indexOf(u.data[0][u.cursor.idx ?? Math.floor(u.data[0].length / 2)]);
      const half = Math.max(2, Math.round(((to - from) / 2) * (event.key === "+" ? 0.5 : 2)));
      this.spec.zoomed(middle - half, middle + half);
    }
  }
}

const WHOLE = [1, 2, 5].flatMap((m) => Array.from({ length: 9 }, (_, e) => m * 10 ** e)).sort((a, b) => a - b);

// From 0, so that a small change does not look like a large one, unless some are below, or 0 means nothing (`free`); up to `most` where there
// can be no more.
function yRange(low, high, data) {
  if (data.log?.includes("y")) return low === null ? [0.1, 1] : uPlot.rangeLog(low, high, 10, false);
  if (low === null || high === null) return [0, data.most ?? 1];
  if (data.share) return shareLimits(low, high);
  if (low >= 0 && !data.free) low = 0;
  const room = (high - low) * 0.06 || Math.abs(high) * 0.1 || 1;
  return [low === 0 ? 0 : low - room, data.most !== undefined && high <= data.most ? data.most : high + room];
}

// The axis of shares that lie from low to high: as draw.py's share_limits.
function shareLimits(low, high) {
  if (!(low >= 0.25 && high <= 1)) return [Math.min(0, low), Math.max(1, high)];
  return [Math.max(0, Math.floor(20 * low - 0.2) / 20), Math.min(1, Math.ceil(20 * high + 0.2) / 20)];
}

const inSight = (data) => (data.marks || []).filter(({ at }) => at >= data.from && at <= data.to);

// Where a board's process ended too early: a dashed line down the plot, and a cross on top of it; where it was started again: a dotted one and
// a triangle; where the whole run was resumed: long dashes and a triangle; where a link's rate changed: a tick below.
const markStyle = ({ kind, color }) => ({
  color: color || css({ restarted: "--again", resumed: "--ink", rate: "--ink" }[kind] || "--alarm"),
  dash: { restarted: [1, 3], resumed: [9, 4], rate: [] }[kind] || [4, 3],
  low: kind === "rate",
});

// The lines of a mark at `left`, from top to bottom: [dashes, ...points]. `arm` is half the height of a cross.
function markLines(mark, left, top, bottom, arm) {
  const { dash, low } = markStyle(mark),
    out = [[dash, [left, low ? bottom - 3 * arm : top + 2 * arm], [left, bottom]]];
  if (["restarted", "resumed"].includes(mark.kind))
    out.push([[], [left - arm, top + 2 * arm], [left, top], [left + arm, top + 2 * arm], [left - arm, top + 2 * arm]]);
  else if (!low)
    for (const way of [-1, 1]) out.push([[], [left - arm, top + arm - way * arm], [left + arm, top + arm + way * arm]]);
  return out;
}

function drawMarks(u, marks, x) {
  const { ctx, bbox } = u,
    unit = devicePixelRatio || 1;
  ctx.save();
  ctx.lineWidth = 2 * Math.round(unit);
  for (const mark of marks) {
    const left = Math.round(u.valToPos(x[mark.at], "x", true));
    ctx.strokeStyle = markStyle(mark).color;
    for (const [dash, ...points] of markLines(mark, left, bbox.top, bbox.top + bbox.height, 3 * unit)) {
      ctx.setLineDash(dash.map((length) => length * unit));
      ctx.beginPath();
      points.forEach(([x, y], k) => (k ? ctx.lineTo(x, y) : ctx.moveTo(x, y)));
      ctx.stroke();
    }
  }
  ctx.restore();
}

// A finger moves the cursor sideways; up and down still scrolls the page.
function touchCursor(u) {
  u.over.style.touchAction = "pan-y";
  const move = (event) => {
    if (event.pointerType === "mouse") return;
    const box = u.over.getBoundingClientRect();
    u.touched = true;
    u.setCursor({ left: event.clientX - box.left, top: event.clientY - box.top });
  };
  for (const name of ["pointerdown", "pointermove"]) u.over.addEventListener(name, move);
}

function showTip(x, y, title, rows) {
  const tip = document.getElementById("tip"),
    most = 20;
  const lines = rows
    .slice(0, most)
    .map(([color, label, value]) =>
      h("tr", {}, h("td", {}, color && h("i", { style: { background: color } }), label), h("td", {}, value)),
    );
  tip.replaceChildren(
    h("b", {}, title),
    h("table", {}, h("tbody", {}, lines)),
    rows.length > most ? h("span", { class: "muted" }, `and ${rows.length - most} more`) : "",
  );
  tip.hidden = false;
  const width = tip.offsetWidth,
    height = tip.offsetHeight;
  tip.style.left = `${x + 14 + width > innerWidth ? Math.max(4, x - width - 14) : x + 14}px`;
  tip.style.top = `${Math.max(4, Math.min(y, innerHeight - height - 6))}px`;
}

function hideTip() {
  document.getElementById("tip").hidden = true;
}
