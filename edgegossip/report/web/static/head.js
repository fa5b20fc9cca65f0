// The head of the page: what came out of the run, in a few figures and a sentence.

function renderHead(app) {
  const many = app.runs.length > 1,
    { summary: d, title, name } = app.run.doc,
    s = d.sent_bytes;
  document.title = `${many ? `${app.runs.length} runs` : name} · edgegossip`;
  document.getElementById("title").textContent = many ? `${app.runs.length} runs` : name;
  document.getElementById("subtitle").textContent = (many ? `chosen: ${name} · ` : "") + title;
  document.getElementById("verdict").textContent = verdict(app.run);
  document.getElementById("findings").replaceChildren(...d.verdict.map(finding));
  const seconds = app.run.length ? app.run.seconds().at(-1) : null,
    bad = d.failed_nodes.length;
  const tiles = [
    ...scoreTiles(d),
    ["Test loss", numberText(d.loss), known(d.train_loss) ? `training loss ${numberText(d.train_loss)}` : ""],
    [
      "Rounds",
      String(d.rounds),
      [
        d.rounds_asked && d.rounds_asked !== d.rounds ? `of ${d.rounds_asked}` : "",
        known(seconds) && d.rounds ? `${secondsText(seconds / d.rounds)} each` : "",
      ]
        .filter((s) => s)
        .join(", "),
    ],
    ["Wall time", secondsText(d.seconds), known(seconds) ? `${secondsText(seconds)} of training` : ""],
    ["Sent", bytesText(s.socket ?? s.payload), `by all boards${known(s.payload) ? `, payload ${bytesText(s.payload)}` : ""}`],
    ["Bits per value", known(d.bits_per_value) ? d.bits_per_value.toFixed(2) : "–", "of what was sent"],
    [
      "Boards",
      bad ? `${d.nodes - bad} of ${d.nodes}` : String(d.nodes),
      bad
        ? `lost: ${d.failed_nodes.join(", ")}`
        : d.unfinished_nodes.length
          ? `${d.unfinished_nodes.length} not finished`
          : "all finished",
      bad,
    ],
  ];
  if (app.run.has("sys/energy_j")) {
    const joules = app.run.boards.map((k) => app.run.sum("sys/energy_j", k, 0, app.run.length)).filter(known);
    tiles.splice(6, 0, [
      "Energy a board",
      unitOf("energy_j")(joules.reduce((a, b) => a + b, 0) / (joules.length || 1)),
      (joules.length < d.nodes ? `of ${joules.length} with a sensor` : "mean of the boards") +
        (d.boards.some((b) => b.energy_rounds && b.energy_rounds < b.rounds) ? ", some rounds not measured" : ""),
    ]);
  }
  document
    .getElementById("tiles")
    .replaceChildren(
      ...tiles.map(([term, value, note, alarm]) =>
        h(
          "div",
          { class: `tile ${alarm ? "bad" : ""}` },
          h("dt", {}, term),
          h("dd", {}, value),
          h("dd", { class: "note" }, note),
        ),
      ),
    );
}

// What is not as it should be, and its cure.
function finding(f) {
  return h("li", { class: f.ruin ? "bad" : "" }, h("b", {}, f.text), `. ${f.cure}.`);
}

// A tile a score, the headline first; three at most.
function scoreTiles(d) {
  return Object.entries(d.scores)
    .filter(([name]) => isScore(name))
    .slice(0, 3)
    .map(([name, v]) => {
      const text = scoreText(name),
        boards = d.boards.filter((b) => b.role === "board" && known(b.scores[name])).length,
        spread = !boards ? "of the coordinator’s model" : boards > 1 ? `${text(v.min)} to ${text(v.max)}` : "of the test set";
      return [`Test ${name}`, text(v.mean), spread];
    });
}

// One sentence on what the seconds went to, and which board the others wait for.
function verdict(run) {
  const last = run.length - 1,
    rows = run.boards
      .map((k) => [run.nodes[k], partSums(run, k, 0, last), run.rounds(k, 0, last)])
      .filter(([, sums, n]) => sums && n);
  if (!rows.length) return "";
  const a = PARTS.map((_, p) => rows.reduce((x, [, sums, n]) => x + sums[p] / n, 0) / rows.length),
    total = a.reduce((x, y) => x + y, 0);
  const parts = PARTS.map((part, p) => [part, a[p] / total])
    .sort((x, y) => y[1] - x[1])
    .filter(([, v]) => v >= 0.05);
  const waits = rows
      .map(([node, sums]) => [node, sums[4] / sums.reduce((x, y) => x + y, 0)])
      .sort((x, y) => x[1] - y[1]),
    rest = waits.slice(1).reduce((x, [, v]) => x + v, 0) / (waits.length - 1 || 1);
  const slow =
    waits.length > 2 && rest > 0.1 && waits[0][1] < 0.35 * rest
      ? ` The others wait for ${waits[0][0]}, which hardly ever waits itself.`
      : "";
  return `A round takes ${secondsText(total)}: ${parts.map(([part, v]) => `${Math.round(100 * v)} % ${part}`).join(", ")}.${slow}`;
}
