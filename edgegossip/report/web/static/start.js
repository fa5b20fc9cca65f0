// How the page begins: its data unpacked, or asked from the server that it came from, again and again.

const POLL_S = 2;

// The server answered, and with what it could not do.
class Refused extends Error {}

// What the server has of run k besides what is known; null when that is nothing.
async function fetched(k, known = {}) {
  const answer = await fetch(`data/${k}?${new URLSearchParams(known)}`);
  if (!answer.ok) throw new Refused((await answer.text()).trim() || answer.statusText);
  return answer.status === 204 ? null : unpack(new Uint8Array(await answer.arrayBuffer()));
}

async function follow(app) {
  const badge = document.getElementById("live-badge"),
    text = document.getElementById("live-text"),
    eta = document.getElementById("eta");
  const many = app.runs.length > 1,
    goesOn = (run) => run.doc.summary.unfinished_nodes.length || !run.length,
    pause = () => new Promise((done) => setTimeout(done, 1000 * POLL_S));
  badge.hidden = false;
  for (let failed = []; ; ) {
    if (!failed.length) {
      text.textContent = app.runs.some(goesOn) ? "live" : many ? "the runs are over" : "the run is over";
      eta.textContent = etaText(app.run);
    }
    await pause();
    if (document.hidden) continue;
    failed = await askedAll(app);
    badge.classList.toggle("stale", failed.length > 0);
    if (failed.length) {
      text.textContent = failedText(app, failed);
      eta.textContent = "";
      await pause();
    }
  }
}

// What came new of every run: the table of runs is of one moment. Gives [number of the run, error] of those that did not come.
async function askedAll(app) {
  const answers = await Promise.allSettled(app.runs.map((run, k) => fetched(k, run.known)));
  const fresh = answers.map((answer, k) => {
    if (answer.value) app.runs[k].absorb(answer.value);
    return Boolean(answer.value);
  });
  if (fresh[app.state.run]) app.grown();
  else if (fresh.some((is) => is)) app.dirty(app.across);
  return answers.flatMap(({ reason }, k) => (reason ? [[k, reason]] : []));
}

function failedText(app, failed) {
  const [k, error] = failed[0];
  if (!(error instanceof Refused)) return "nobody answers: is edgegossip top still running?";
  return app.runs.length > 1 ? `run ${k + 1} is not followed: ${error.message}` : error.message;
}

// How far a run is and how long it still takes, if its last board goes on as in its last rounds.
const ETA_ROUNDS = 20;

function etaText(run) {
  const { rounds_asked: asked, unfinished_nodes: unfinished } = run.doc.summary,
    tables = unfinished.map((node) => run.tables[node]).filter((table) => table?.step?.length);
  if (!asked || !tables.length) return "";
  const done = Math.min(...tables.map(({ step }) => step.at(-1))) + 1,
    left = tables.map(({ step, t_s }) => {
      const from = Math.max(0, step.length - 1 - ETA_ROUNDS),
        rounds = step.at(-1) - step[from];
      return rounds > 0 ? ((t_s.at(-1) - t_s[from]) / rounds) * (asked - 1 - step.at(-1)) : NaN;
    });
  const longest = Math.max(...left.filter(known));
  return `round ${done} of ${asked}` + (longest >= 0 && done < asked ? `, about ${secondsText(longest)} left` : "");
}

const loaded = () =>
  new Promise((done) =>
    document.readyState === "loading" ? addEventListener("DOMContentLoaded", done, { once: true }) : done(),
  );
const nextFrame = () => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
const packed = (kind) =>
  [...document.querySelectorAll(`script.${kind}`)].map((script) => {
    script.remove();
    return fromBase64(script.textContent);
  });

async function main() {
  const made = MADE,
    app = new App(made);
  window.edgegossip = app;
  themed(app);
  document.getElementById("foot").textContent =
    `Made by edgegossip ${made.version}, ${made.made}. ${made.live ? "Its requests go to this server only." : "This page makes no network requests."} Drag across a plot to zoom, double click to see all.`;
  const all = await Promise.all(made.live ? made.runs.map((_, k) => fetched(k)) : packed("run-data").map(unpack));
  app.runs = all.map((one) => {
    const run = new Run();
    run.pending = !made.live;
    run.absorb(one);
    return run;
  });
  app.start();
  await nextFrame();
  performance.mark("usable");
  if (made.live) {
    document.documentElement.dataset.ready = "1";
    app.drawRest();
    await follow(app);
    return;
  }
  await loaded();
  const rest = await Promise.all(packed("run-rest").map(unpack));
  rest.forEach((one, k) => app.runs[k].more(one));
  renderHead(app);
  app.dirty();
  await nextFrame();
  document.documentElement.dataset.ready = "1";
  app.drawRest();
}

main().catch((error) => {
  document.documentElement.dataset.started = "1";
  document.getElementById("title").textContent = "This page cannot show its run";
  document.getElementById("subtitle").textContent = String(error.message || error);
  throw error;
});
