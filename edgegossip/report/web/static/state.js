// What is chosen, and the address that says it: all of it stands behind the # of the page's address, so that a link shows what its
// sender saw. What is as it was at first is not in it.

const CHOICES = {
  x: ["round", "seconds", "bytes"],
  log: ["", "y", "x", "xy"],
  smooth: ["0", "5", "20", "100"], // rounds
  bars: ["round", "sum", "share"],
  clock: ["time", "cpu"],
  links: ["bytes", "seconds", "rate"],
  events: ["all", "alarms"],
  theme: ["", "light", "dark"],
};

const atFirst = (runs) => ({
  run: 0,
  base: 0, // the run that others are compared with
  from: 0, // places of rounds in run.steps
  to: runs[0].length - 1,
  whole: true,
  chosen: new Set(runs[0].nodes),
  x: runs.length > 1 ? "seconds" : "round",
  log: "",
  smooth: "0",
  every: false, // a line a board
  bars: "round",
  clock: "time",
  links: "bytes",
  events: "all",
  theme: "",
  metric: "",
  step: null, // the round of the Gantt chart; null: one in the middle
  target: null, // what the runs are to reach; null: what all reach
});

function toAddress(app) {
  const { state, run } = app,
    first = atFirst(app.runs),
    said = new URLSearchParams();
  if (state.run) said.set("run", state.run + 1);
  if (state.base) said.set("base", state.base + 1);
  for (const name of Object.keys(CHOICES)) if (state[name] !== first[name]) said.set(name, state[name]);
  if (!state.whole && run.length) said.set("rounds", `${run.steps[state.from] + 1}-${run.steps[state.to] + 1}`);
  if (state.chosen.size < run.nodes.length) for (const node of state.chosen) said.append("board", node);
  if (state.every) said.set("lines", "1");
  if (state.metric) said.set("metric", state.metric);
  if (state.step !== null) said.set("one", state.step + 1);
  if (known(state.target)) said.set("target", state.target);
  return said.toString();
}

// The state that an address says; what it says wrongly, or of another run, is left out.
function fromAddress(address, runs) {
  const said = new URLSearchParams(address),
    state = atFirst(runs),
    number = (name) => (said.has(name) && said.get(name).trim() !== "" && Number.isFinite(+said.get(name)) ? +said.get(name) : null),
    place = (name) => (Number.isInteger(number(name)) && runs[number(name) - 1] ? number(name) - 1 : 0);
  state.run = place("run");
  state.base = place("base");
  const run = runs[state.run];
  Object.assign(state, { to: run.length - 1, chosen: new Set(run.nodes) });
  for (const [name, choices] of Object.entries(CHOICES)) if (choices.includes(said.get(name))) state[name] = said.get(name);
  const [, from, to] = /^(\d+)-(\d+)$/.exec(said.get("rounds") || "") || [];
  if (from) {
    const [a, b] = [from, to].map((round) => run.placeOf(round - 1));
    if (a < b) Object.assign(state, { from: a, to: b, whole: a === 0 && b === run.length - 1 });
  }
  const boards = said.getAll("board").filter((node) => run.nodes.includes(node));
  if (boards.length) state.chosen = new Set(boards);
  state.every = said.get("lines") === "1";
  if (run.names.has(said.get("metric"))) state.metric = said.get("metric");
  if (number("one") !== null) state.step = number("one") - 1;
  state.target = number("target");
  return state;
}
