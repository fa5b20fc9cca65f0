// The runs of this page: numbers in columns a node, put on one axis of rounds. view.py packs them.

const PARTS = ["compute", "encode", "transmit", "decode", "wait", "other"];

const TICKS_A_SECOND = 1e5;

// Keyed by what boards and people call things: a plain object has keys of its own, such as "constructor".
const keyed = (object = {}) => Object.assign(Object.create(null), object);
const KEYED = ["spans", "starts", "clocks"]; // of the document

async function inflate(bytes) {
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

function fromBase64(text) {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(text);
  const chars = atob(text),
    bytes = new Uint8Array(chars.length);
  for (let i = 0; i < chars.length; i++) bytes[i] = chars.charCodeAt(i);
  return bytes;
}

async function unpack(bytes) {
  const plain = await inflate(bytes);
  const size = new DataView(plain.buffer).getUint32(0, true),
    base = 4 + size;
  const doc = JSON.parse(new TextDecoder().decode(plain.subarray(4, base)));
  const columns = keyed();
  for (const name of KEYED) if (doc[name]) doc[name] = keyed(doc[name]);
  for (const [node, blocks] of Object.entries(doc.blocks)) {
    columns[node] = keyed();
    for (const [name, [offset, rows, width]] of Object.entries(blocks))
      columns[node][name] = fromPlanes(plain, base + offset, rows, width);
    if (columns[node].t_s) columns[node].t_s = columns[node].t_s.map((ticks) => ticks / TICKS_A_SECOND);
  }
  delete doc.blocks;
  return { doc, columns };
}

function fromPlanes(plain, start, rows, width) {
  const bytes = new Uint8Array(rows * width);
  for (let plane = 0; plane < width; plane++)
    for (let row = 0, from = start + plane * rows, to = plane; row < rows; row++, to += width)
      bytes[to] = plain[from + row];
  return width === 8 ? new Float64Array(bytes.buffer) : new Float32Array(bytes.buffer);
}

class Run {
  constructor() {
    this.tables = keyed();
    this.version = 0;
  }

  // What came new of a run; of events and spans `doc` has what is new, of all else the whole.
  absorb({ doc, columns }) {
    const before = this.doc && this.doc.generation === doc.generation ? this.doc : null;
    if (before) {
      doc.events = before.events.slice(0).concat(doc.events);
      for (const [node, spans] of Object.entries(before.spans)) doc.spans[node] = { ...spans, ...doc.spans[node] };
    } else this.tables = keyed();
    this.doc = doc;
    for (const [node, fresh] of Object.entries(columns)) {
      const table = this.tables[node],
        start = doc.starts[node] || 0;
      this.tables[node] = start && table ? joined(table, fresh) : fresh;
    }
    this.known = { generation: doc.generation, rows: doc.rows.join(","), events: doc.events_until, span: doc.spans_until };
    this.changed();
  }

  // The columns that were left out at first.
  more({ columns }) {
    for (const [node, rest] of Object.entries(columns)) Object.assign(this.tables[node], rest);
    this.pending = false;
    this.changed();
  }

  changed() {
    this.version++;
    this.cache = new Map();
    this.align();
  }

  align() {
    this.nodes = this.doc.nodes
      .filter((node) => this.tables[node]?.step?.length)
      .sort((a, b) => a.localeCompare(b, "en", { numeric: true }));
    const columns = this.nodes.map((node) => this.tables[node].step);
    this.steps = sortedSteps(columns);
    const place = placesOf(this.steps);
    this.at = columns.map((column) => Int32Array.from(column, place));
    this.boards = this.nodes.map((_, k) => k).filter((k) => this.nodes[k] !== this.doc.coordinator);
    this.names = new Set(this.doc.names);
    this.state = keyed(Object.fromEntries(this.doc.summary.boards.map((row) => [row.node, row.state])));
    this.events = this.doc.events
      .map((event) => ({ ...event, t_s: this.clock(event.own ? event.node : this.doc.coordinator, event.t_s) }))
      .sort((a, b) => a.t_s - b.t_s);
    // Each time that a board's process ended too early, at the last round that it had done.
    const placed = (one) => ({ ...one, at: this.placeOf(one.rounds - 1) });
    this.marks = (this.doc.summary.interruptions || []).map(placed);
    this.resumes = (this.doc.summary.resumes || []).map((one) => placed({ ...one, event: "resumed" }));
    this.changes = this.rateChanges();
  }

  // What the codec `auto` changed, at the round in which it did: {at, nodes, text}, those of one round together.
  rateChanges() {
    const found = new Map();
    for (const { node, t_s, event, text } of this.doc.events) {
      const k = this.nodes.indexOf(node);
      if (event !== "rate" || k < 0) continue;
      const row = this.tables[node].t_s.findIndex((t) => t >= t_s),
        at = this.at[k].at(row); // the last one of all where it came after all
      if (!found.has(at)) found.set(at, { at, nodes: new Set(), texts: [] });
      found.get(at).nodes.add(node);
      found.get(at).texts.push(text);
    }
    return [...found.values()];
  }

  // A node's own time on the clock of all, as clocks.py has it.
  clock(node, t_s) {
    const [, shift] = (this.doc.clocks[node] || []).findLast(([since]) => t_s >= since) || [0, 0];
    return t_s + shift;
  }

  // The index of the last round up to this one; 0 before the first.
  placeOf(step) {
    let low = 0,
      high = this.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.steps[middle] <= step) low = middle + 1;
      else high = middle;
    }
    return Math.max(0, low - 1);
  }

  // A node's column. What sockets carried is only in some records, each of all rounds since the one before: every round gets its part.
  column(k, name) {
    const table = this.tables[this.nodes[k]];
    if (!name.startsWith("net/") || !table[name]) return table[name];
    return this.cached(`c ${k} ${name}`, () => spreadOut(table[name], table));
  }

  get length() {
    return this.steps.length;
  }

  has(name) {
    return this.names.has(name);
  }

  cached(key, make) {
    if (!this.cache.has(key)) this.cache.set(key, make());
    return this.cache.get(key);
  }

  // One array a node, an entry a round, nan where nothing is. Of a round done twice the last counts; sums count both.
  matrix(name) {
    return this.cached("m " + name, () =>
      this.nodes.map((node, k) => {
        const out = new Float32Array(this.length).fill(NaN),
          column = this.column(k, name),
          at = this.at[k];
        if (column)
          for (let row = 0; row < column.length; row++) if (column[row] === column[row]) out[at[row]] = column[row];
        return out;
      }),
    );
  }

  // Boards' figures; the coordinator's where no board has any.
  shown(name, chosen) {
    const m = this.matrix(name),
      some = (k) => m[k].some((v) => v === v);
    const boards = this.boards.filter((k) => chosen.has(this.nodes[k]) && some(k));
    if (boards.length) return boards;
    return this.boards.some(some) ? [] : this.nodes.map((_, k) => k).filter(some);
  }

  // The centred moving mean over so many rounds, nan passed over: as series.py's smooth.
  smoothed(key, y, window) {
    return this.cached(`w ${key} ${window}`, () => {
      const n = y.length,
        sums = new Float64Array(n + 1),
        counts = new Float64Array(n + 1);
      for (let i = 0; i < n; i++) {
        const there = y[i] === y[i];
        sums[i + 1] = sums[i] + (there ? y[i] : 0);
        counts[i + 1] = counts[i] + there;
      }
      return sums.slice(1).map((_, i) => {
        const low = Math.max(i - (window >> 1), 0),
          high = Math.min(i + ((window + 1) >> 1), n);
        return (sums[high] - sums[low]) / (counts[high] - counts[low]);
      });
    });
  }

  spread(name, rows) {
    return this.cached(`s ${name} ${rows}`, () => {
      const m = this.matrix(name),
        n = this.length;
      const mean = new Float64Array(n).fill(NaN),
        low = mean.slice(),
        high = mean.slice();
      for (let i = 0; i < n; i++) {
        let sum = 0,
          count = 0,
          lo = Infinity,
          hi = -Infinity;
        for (const k of rows) {
          const v = m[k][i];
          if (v === v) {
            sum += v;
            count++;
            if (v < lo) lo = v;
            if (v > hi) hi = v;
          }
        }
        if (count) {
          mean[i] = sum / count;
          low[i] = lo;
          high[i] = hi;
        }
      }
      return { mean, low, high };
    });
  }

  // Sum of a column of one node over rounds from..to, both with; null where it was not measured. Rows may stand for several rounds.
  sum(name, k, from, to) {
    const column = this.column(k, name),
      weight = this.tables[this.nodes[k]].rounds,
      at = this.at[k];
    if (!column) return null;
    let sum = 0,
      count = 0;
    for (let row = 0; row < column.length; row++) {
      const i = at[row],
        v = column[row];
      if (i >= from && i <= to && v === v) {
        sum += v * (weight ? weight[row] : 1);
        count++;
      }
    }
    return count ? sum : null;
  }

  // A coordinator writes a record of its evaluation beside that of the round; only those with seconds are rounds, where any has.
  rounds(k, from, to) {
    const table = this.tables[this.nodes[k]],
      seconds = table["time/round_s"];
    let n = 0;
    this.at[k].forEach((i, row) => {
      if (i >= from && i <= to && (!seconds || known(seconds[row]))) n += table.rounds ? table.rounds[row] : 1;
    });
    return n;
  }

  // The axis that plots are drawn against: rounds done, seconds of training, or bytes sent by all boards.
  x(kind) {
    if (kind === "round") return this.cached("done", () => this.steps.map((step) => step + 1));
    return kind === "seconds" ? this.seconds() : this.bytes();
  }

  // The nodes whose rounds, seconds and bytes are the run's. What a coordinator sends is what its boards receive.
  get counted() {
    return this.boards.length ? this.boards : this.nodes.map((_, k) => k);
  }

  bytes() {
    return this.cached("bytes", () => {
      const out = new Float64Array(this.length),
        name = this.has("net/sent_bytes") ? "net/sent_bytes" : "net/payload_bytes";
      this.counted.forEach((k) => {
        const column = this.column(k, name),
          weight = this.tables[this.nodes[k]].rounds;
        if (column)
          column.forEach((v, row) => {
            if (v === v) out[this.at[k][row]] += v * (weight ? weight[row] : 1);
          });
      });
      for (let i = 1; i < out.length; i++) out[i] += out[i - 1];
      return out;
    });
  }

  // As series.py has it: each node counts from where its first round began, since its clock is its own; the mean of the nodes there.
  seconds() {
    return this.cached("seconds", () => {
      const n = this.length,
        sum = new Float64Array(n),
        count = new Float64Array(n);
      const add = (k, joined) => {
        const table = this.tables[this.nodes[k]],
          at = this.at[k],
          own = new Float64Array(n).fill(NaN);
        table.t_s.forEach((t, row) => {
          own[at[row]] = t - table.t_s[0] + joined;
        });
        for (let i = 0; i < n; i++)
          if (own[i] === own[i]) {
            sum[i] += own[i];
            count[i]++;
          }
      };
      const late = [];
      this.counted.forEach((k) => {
        if (this.at[k][0] > 0) late.push(k);
        else add(k, this.first(k));
      });
      const mean = () => rising(sum.map((s, i) => (count[i] ? s / count[i] : NaN)));
      const others = mean();
      for (const k of late) add(k, others[this.at[k][0]] || 0);
      return mean();
    });
  }

  first(k) {
    const round = this.tables[this.nodes[k]]["time/round_s"];
    return round && round[0] === round[0] ? round[0] : 0;
  }

  // A node's own time on one clock for all: by the time of day where every node told it, else by its first round.
  time(node, t_s) {
    if (this.nodes.every((name) => name in this.doc.clocks)) return this.clock(node, t_s);
    return this.first(this.nodes.indexOf(node)) - this.tables[node].t_s[0] + t_s;
  }
}

const DENSE = 4e6;

// All rounds that any node has. They are numbered without great gaps, so that a flag for each is cheaper than a set of them; a round
// beyond all reason, which a broken board may claim, must not cost its number in memory.
function sortedSteps(columns) {
  let first = Infinity,
    last = -Infinity;
  for (const column of columns)
    for (const step of column) {
      if (step < first) first = step;
      if (step > last) last = step;
    }
  if (last < first) return new Float64Array(0);
  if (last - first > DENSE) return Float64Array.from(new Set(columns.flatMap((column) => [...column]))).sort();
  const there = new Uint8Array(last - first + 1);
  for (const column of columns) for (const step of column) there[step - first] = 1;
  const steps = new Float64Array(there.reduce((a, b) => a + b, 0));
  for (let i = 0, k = 0; i < there.length; i++) if (there[i]) steps[k++] = first + i;
  return steps;
}

// The index of a round among the sorted ones.
function placesOf(steps) {
  const first = steps[0] || 0,
    last = steps.at(-1) ?? 0;
  if (last - first > DENSE) {
    const places = new Map();
    steps.forEach((step, k) => places.set(step, k));
    return (step) => places.get(step);
  }
  const places = new Int32Array(last - first + 1);
  steps.forEach((step, k) => {
    places[step - first] = k;
  });
  return (step) => places[step - first];
}

function joined(table, fresh) {
  const rows = table.step.length,
    more = fresh.step ? fresh.step.length : 0,
    out = keyed();
  for (const name of new Set([...Object.keys(table), ...Object.keys(fresh)])) {
    const Kind = name === "step" || name === "t_s" ? Float64Array : Float32Array;
    const column = (out[name] = new Kind(rows + more).fill(name === "rounds" ? 1 : NaN));
    if (table[name]) column.set(table[name]);
    if (fresh[name]) column.set(fresh[name], rows);
  }
  return out;
}

// Each count shared out among the rounds since the one before it; nan after the last one. As series.py has it; a row may stand for several
// rounds, or, without seconds where others have some, for none.
function spreadOut(column, { rounds, "time/round_s": seconds }) {
  const out = column.slice();
  let since = [],
    total = 0;
  for (let row = 0; row < column.length; row++) {
    const here = column[row] === column[row];
    if (seconds && seconds[row] !== seconds[row] && !here) continue;
    since.push(row);
    total += rounds ? rounds[row] : 1;
    if (!here) continue;
    const share = (column[row] * (rounds ? rounds[row] : 1)) / total;
    for (const one of since) out[one] = share;
    since = [];
    total = 0;
  }
  return out;
}

// Never falling, without gaps after the first known value.
function rising(values) {
  let last = 0;
  return values.map((v) => (last = v > last ? v : last));
}
