// Line plots: uPlot draws, and this file thins, colours, zooms, explains. What a plot shows is a list of series
// {label, y, color, dash, fill, kind}: y is as long as x; kind says what stands for many points in one place.

const LIGHT = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#332288", "#882255", "#117733"];
const DARK = ["#56B4E9", "#FF8A4C", "#2FC79A", "#E29CC7", "#F2B632", "#9AD0F5", "#A99BFF", "#E5739B", "#8FD18F"];

const isDark = () => document.documentElement.dataset.theme === "dark";
const boardColor = (k) => (isDark() ? DARK : LIGHT)[k % LIGHT.length];
const boardDash = (k) => (Math.floor(k / LIGHT.length) % 2 ? [6, 4] : []);

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
    box.tabIndex = 0;
    box.setAttribute("role", "img");
    box.setAttribute("aria-label", `${spec.label}. Left and right arrows read values, plus and minus zoom.`);
    box.addEventListener("keydown", (event) => this.key(event));
    box.addEventListener("blur", hideTip);
  }

  // data: {x, series, from, to, bands, most, free, marks}; bands [[high, low]] are filled between two of the series, marks [{at, text}] are
  // lines down the plot at places of x.
  draw(data) {
    const width = Math.max(160, this.box.clientWidth);
    if (!data.series.length || data.to < data.from) {
      this.clear();
      this.box.replaceChildren(
        h("p", { class: "empty" }, data.empty || (edgegossip.run.pending ? "" : "nothing measured")),
      );
      return;
    }
    this.data = data;
    this.base = data.from;
    const points = thinned(data.x, data.series, data.from, data.to, width);
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
      marks = (data.marks || []).filter(({ at }) => at >= data.from && at <= data.to);
    return {
      width,
      height: this.spec.height,
      legend: { show: false },
      scales: {
        x: { time: false, range: (u, lo, hi) => (lo === hi ? [lo - 0.5, hi + 0.5] : [lo, hi]) },
        y: { range: (u, lo, hi) => yRange(lo, hi, data) },
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
          incrs: data.whole ? WHOLE : undefined,
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
          width: s.width ?? 1.4,
          dash: s.dash,
          fill: s.fill,
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
        .concat((this.data.marks || []).filter(near).map(({ text, color }) => [color || css("--alarm"), text, ""])),
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
  if (low === null || high === null) return [0, data.most ?? 1];
  if (low >= 0 && !data.free) low = 0;
  const room = (high - low) * 0.06 || Math.abs(high) * 0.1 || 1;
  return [low === 0 ? 0 : low - room, data.most !== undefined && high <= data.most ? data.most : high + room];
}

// Where a board's process ended too early: a dashed line down the plot, and a cross on top of it.
function drawMarks(u, marks, x) {
  const { ctx, bbox } = u,
    unit = devicePixelRatio || 1;
  ctx.save();
  for (const { at, color } of marks) {
    const left = Math.round(u.valToPos(x[at], "x", true)),
      arm = 3 * unit;
    ctx.strokeStyle = color || css("--alarm");
    ctx.lineWidth = 2 * Math.round(unit);
    ctx.setLineDash([4 * unit, 3 * unit]);
    ctx.beginPath();
    ctx.moveTo(left, bbox.top + 2 * arm);
    ctx.lineTo(left, bbox.top + bbox.height);
    ctx.stroke();
    ctx.setLineDash([]);
    ctx.beginPath();
    for (const way of [-1, 1]) {
      ctx.moveTo(left - arm, bbox.top + arm - way * arm);
      ctx.lineTo(left + arm, bbox.top + arm + way * arm);
    }
    ctx.stroke();
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
