// How the page begins: its data unpacked, or asked from the server that it came from, again and again.

const POLL_S = 2;

// What the server has of run k besides what is known; null when that is nothing.
async function fetched(k, known = {}) {
  const answer = await fetch(`data/${k}?${new URLSearchParams(known)}`);
  if (!answer.ok) throw new Error((await answer.text()) || answer.statusText);
  return answer.status === 204 ? null : unpack(new Uint8Array(await answer.arrayBuffer()));
}

async function follow(app) {
  const badge = document.getElementById("live-badge"),
    text = document.getElementById("live-text");
  const tell = () => {
    text.textContent = app.run.doc.summary.unfinished_nodes.length || !app.run.length ? "live" : "the run is over";
  };
  badge.hidden = false;
  for (;;) {
    tell();
    await new Promise((done) => setTimeout(done, 1000 * POLL_S));
    if (document.hidden) continue;
    const run = app.run;
    try {
      const news = await fetched(app.state.run, run.known);
      if (news) {
        run.absorb(news);
        app.grown();
      }
      badge.classList.remove("stale");
    } catch (error) {
      badge.classList.add("stale");
      text.textContent = "nobody answers: is edgegossip top still running?";
      await new Promise((done) => setTimeout(done, 1000 * POLL_S));
    }
  }
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
  const made = JSON.parse(document.getElementById("page-made").textContent),
    app = new App(made);
  window.edgegossip = app;
  themed(app);
  document.getElementById("foot").textContent =
    `Made by edgegossip ${made.version}, ${made.made}. Nothing on this page is asked from anywhere else. Drag across a plot to zoom, double click to see all.`;
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
}

main().catch((error) => {
  document.getElementById("title").textContent = "This page cannot show its run";
  document.getElementById("subtitle").textContent = String(error.message || error);
  throw error;
});
