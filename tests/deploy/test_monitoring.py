"""The dashboard and the alerts ask for what boards serve, and Prometheus' own tools take them."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from edgegossip.report.openmetrics import Totals
from edgegossip.telemetry.records import METRICS, EventRecord, MetricsRecord

FOLDER = Path(__file__).parents[2] / "deploy/monitoring"
LABELS = {"run", "node", "job", "instance", "fleet"}  # the last three are Prometheus' and our example's own


def expressions(name: str) -> list[str]:
    """All queries of a file."""
    text = (FOLDER / name).read_text()
    if name.endswith(".yml"):
        return re.findall(r"^ +expr: (.+)$", text, re.MULTILINE)
    document = json.loads(text)
    asked = [target["expr"] for panel in document["panels"] for target in panel["targets"]]
    return asked + [variable["definition"] for variable in document["templating"]["list"] if "definition" in variable]


@pytest.fixture(scope="module")
def served() -> dict[str, set[str]]:
    """The labels of every metric that a board with all sensors serves."""
    totals = Totals("demo", 1)
    own = {"link/pi-02_bytes": 1.0, "link/pi-02_s": 1.0, "rate/pi-02_bits": 1.0, "rate/pi-02_mbit": 1.0, "eval/f1": 1.0}
    totals.take(MetricsRecord("pi-01", 0, 0.0, dict.fromkeys(METRICS, 1.0) | own))
    totals.take(EventRecord("pi-01", 0.0, "started", ""))
    return {name: set(re.findall(r'(\w+)="', labels)) for name, _, labels, _ in totals.samples()}


@pytest.mark.parametrize("name", ["dashboard.json", "alerts.yml"])
def test_every_metric_that_is_asked_for_is_served_with_its_labels(name: str, served: dict[str, set[str]]) -> None:
    found = expressions(name)
    assert len(found) >= 5
    for expression in found:
        metrics = set(re.findall(r"\bedgegossip_\w+", expression))
        assert metrics <= served.keys(), f"{expression}: nobody serves {metrics - served.keys()}"
        known = LABELS.union(*(served[metric] for metric in metrics))
        asked = set(re.findall(r"(\w+)=~?\"", expression))
        asked |= {label.strip() for by in re.findall(r"\b(?:by|on) \(([^)]*)\)", expression) for label in by.split(",")}
        assert asked <= known, f"{expression}: no label {asked - known}"


def test_the_dashboard_can_be_imported_as_it_is(served: dict[str, set[str]]) -> None:
    document = json.loads((FOLDER / "dashboard.json").read_text())
    variables = {variable["name"] for variable in document["templating"]["list"]} | {"__rate_interval"}
    taken = set()
    for panel in document["panels"]:
        place = panel["gridPos"]
        cells = {(x, y) for x in range(place["x"], place["x"] + place["w"]) for y in range(place["y"], place["y"] + 8)}
        assert place["h"] == 8 and place["x"] + place["w"] <= 24 and not cells & taken, panel["title"]
        taken |= cells
        for target in panel["targets"]:
            assert set(re.findall(r"\$\{?(\w+)", target["expr"] + target["datasource"]["uid"])) <= variables
            legend = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
            (metric,) = set(re.findall(r"\bedgegossip_\w+", target["expr"]))
            assert legend <= served[metric], panel["title"]
    assert len({panel["id"] for panel in document["panels"]}) == len(document["panels"])


RULES = """
rule_files: [{folder}/alerts.yml]
evaluation_interval: 1m
tests:
  - interval: 1m
    input_series:
      - {{series: 'edgegossip_state{{run="r", node="pi-03", state="lost"}}', values: '0 0 1x60'}}
      - {{series: 'edgegossip_rounds{{run="r", node="pi-02"}}', values: '0+1x5 5x60'}}
      - {{series: 'edgegossip_state{{run="r", node="pi-02", state="unfinished"}}', values: '1x60'}}
      - {{series: 'edgegossip_rounds{{run="r", node="pi-01"}}', values: '0+1x60'}}
      - {{series: 'edgegossip_state{{run="r", node="pi-01", state="unfinished"}}', values: '1x60'}}
      - {{series: 'up{{job="edgegossip", instance="pi-04.local:9464"}}', values: '1 1 0x60'}}
    alert_rule_test:
      - eval_time: 1m
        alertname: BoardLost
      - eval_time: 3m
        alertname: BoardLost
        exp_alerts:
          - exp_labels: {{severity: warning, run: r, node: pi-03, state: lost}}
            exp_annotations: {{summary: pi-03 was lost in r}}
      - eval_time: 10m
        alertname: NoProgress
      - eval_time: 50m
        alertname: NoProgress
        exp_alerts:
          - exp_labels: {{severity: warning, run: r, node: pi-02}}
            exp_annotations: {{summary: pi-02 has done no round of r for half an hour}}
      - eval_time: 10m
        alertname: BoardSilent
        exp_alerts:
          - exp_labels: {{severity: warning, job: edgegossip, instance: "pi-04.local:9464"}}
            exp_annotations: {{summary: "pi-04.local:9464 has not answered for two minutes"}}
"""


@pytest.mark.slow
def test_promtool_takes_the_configuration_and_the_alerts_go_off(tmp_path: Path) -> None:
    if shutil.which("promtool") is None:
        pytest.skip("needs promtool of Debian's package prometheus")
    (tmp_path / "rules.yml").write_text(RULES.format(folder=FOLDER))
    for command in (["check", "config", FOLDER / "prometheus.yml"], ["test", "rules", tmp_path / "rules.yml"]):
        done = subprocess.run(["promtool", *command], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
