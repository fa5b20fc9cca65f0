"""A board's side: ask the operator's machine for the next cell, run it as a gossip board in a process of its own, hand
in the records.
"""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from edgegossip import recipe as recipes
from edgegossip.choices import did_you_mean
from edgegossip.mesh import address as addresses
from edgegossip.mesh.security.identity import Identity
from edgegossip.node.entering import check_functions
from edgegossip.node.spec import check_names
from edgegossip.profiling.files import write_atomic
from edgegossip.profiling.run_folder import read_run
from edgegossip.scale.boards.desk import JOB, RECORDS
from edgegossip.types import ConfigError, PeerError, RunError

ASK_S = 1.0  # between two questions
TIMEOUT_S = 30.0
PATIENCE_S = 600.0  # for an operator that is away: it may be started again
STOP_S = 10.0

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Following:
    """The command line of `edgegossip scale --follow`."""

    operator: str  # HOST:PORT
    name: str
    listen: str  # HOST:PORT for peers
    identity: Path | None
    insecure: bool
    settings: tuple[str, ...]  # of this board's own, such as data.dir
    runs_dir: Path


class Operator:
    """Questions to the operator's machine, a connection each. Raises PeerError when it refuses, OSError when it is not there."""

    def __init__(self, following: Following, identity: Identity | None) -> None:
        self._following, self._identity = following, identity
        self._where = addresses.parse(following.operator, "--follow")
        self._port = addresses.parse(following.listen, "--listen").port

    def job(self) -> dict[str, Any]:
        query = urlencode({"name": self._following.name, "port": self._port})
        return self._ask("GET", f"{JOB}?{query}", None)

    def hand_in(self, document: Mapping[str, Any]) -> None:
        self._ask("POST", RECORDS, json.dumps(document).encode())

    def _ask(self, method: str, path: str, body: bytes | None) -> dict[str, Any]:
        connection = self._connect()
        try:
            connection.request(method, path, body)
            answer = connection.getresponse()
            document = json.loads(answer.read())
        except (ValueError, http.client.HTTPException) as error:
            raise PeerError(f"{self._where}: an answer that makes no sense ({error})") from None
        finally:
            connection.close()
        if answer.status != 200 or not isinstance(document, dict):
            raise PeerError(f"{self._where}: {document.get('error') if isinstance(document, dict) else answer.status}")
        return document

    def _connect(self) -> http.client.HTTPConnection:
        if self._identity is None:
            return http.client.HTTPConnection(self._where.host, self._where.port, timeout=TIMEOUT_S)
        from edgegossip.mesh.security import tls

        context = tls.caller_context(self._identity, "coordinator")
        return http.client.HTTPSConnection(self._where.host, self._where.port, timeout=TIMEOUT_S, context=context)


def follow(following: Following, say: Say) -> int:
    """Until the operator says that it is over. Returns the exit code. Raises ConfigError, PeerError, RunError."""
    operator = Operator(following, _identity(following))
    say(f"{following.name} asks {following.operator} what to run")
    heard_s = time.monotonic()
    while True:
        try:
            job = operator.job()
            heard_s = time.monotonic()
            if job["state"] == "over":
                say("the scalability run is over")
                return 0
            if job["state"] == "go":
                _hand_in(operator, _run(following, job, say))
                heard_s = time.monotonic()
        except OSError as error:
            if time.monotonic() - heard_s > PATIENCE_S:
                raise RunError(f"{following.operator} was out of reach for {PATIENCE_S:.0f} s: {error}") from None
        except KeyError as error:
            raise PeerError(f"{following.operator}: an answer without {error}") from None
        time.sleep(ASK_S)


def _identity(following: Following) -> Identity | None:
    check_names("--name", (following.name,))
    where = addresses.parse(following.operator, "--follow")
    if following.identity is None:
        if not (following.insecure or where.is_loopback or where.host == "localhost"):
            raise ConfigError(
                f"--follow {following.operator}: without TLS anybody on that network could say what runs here: give this board "
                "an identity (`edgegossip fleet add NAME`, then --identity DIR), or say --insecure on a network you trust"
            )
        return None
    identity = Identity.load(following.identity)
    if (identity.name, identity.role) != (following.name, "board"):
        hint = did_you_mean(following.name, [identity.name])
        raise ConfigError(
            f"--identity {following.identity} is of {identity.name} ({identity.role}), not of {following.name}{hint}"
        )
    return identity


def _hand_in(operator: Operator, document: Mapping[str, Any]) -> None:
    """Again and again: what was measured took long."""
    until_s = time.monotonic() + PATIENCE_S
    while True:
        try:
            return operator.hand_in(document)
        except OSError:
            if time.monotonic() > until_s:
                raise
            time.sleep(ASK_S)


def command(following: Following, job: Mapping[str, Any], recipe: Path, runs: Path) -> list[str]:
    """What this board is to run: a gossip board that knows every peer."""
    words = [
        sys.executable,
        "-m",
        "edgegossip",
        "node",
        str(recipe),
        "--name",
        following.name,
        "--listen",
        following.listen,
    ]
    words += [word for name, where in job["peers"].items() for word in ("--peer", f"{name}={where}")]
    words += [word for setting in following.settings for word in ("--set", setting)]
    words += ["--identity", str(following.identity)] if following.identity else ["--insecure"]
    return [*words, "--runs", str(runs), "--fresh"]


def _run(following: Following, job: Mapping[str, Any], say: Say) -> dict[str, Any]:
    """One cell; the document to hand in. Raises KeyError."""
    folder = following.runs_dir / f"scale-{job['cell']}-{following.name}"
    folder.mkdir(parents=True, exist_ok=True)
    recipe, before = folder / "recipe.toml", set(folder.glob("*/metrics.jsonl"))
    write_atomic(recipe, str(job["recipe"]).encode())
    try:
        check_functions(recipes.load(str(recipe)), following.settings)
    except ConfigError as error:
        return _nothing(following, job, str(error))
    say(f"runs cell {job['cell']} with {len(job['peers'])} others")
    with (folder / "log").open("ab") as log:
        process = subprocess.Popen(
            command(following, job, recipe, folder), stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
        try:
            code = process.wait()
        finally:
            _stop(process)
    made = sorted(set(folder.glob("*/metrics.jsonl")) - before)
    tail = (folder / "log").read_text(errors="replace").strip().splitlines()[-1:]
    say(f"cell {job['cell']} ended with exit code {code}")
    return {
        "name": following.name,
        "cell": job["cell"],
        "code": code,
        "reason": "".join(tail) if code else "",
        "metrics": made[-1].read_text(errors="replace").splitlines() if made else [],
        "accuracy": _accuracy(made[-1:]),
    }


def _nothing(following: Following, job: Mapping[str, Any], reason: str) -> dict[str, Any]:
    """What is handed in of a cell that is not run here."""
    name, cell = following.name, job["cell"]
    return {"name": name, "cell": cell, "code": 2, "reason": reason, "metrics": [], "accuracy": None}


def _stop(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _accuracy(made: Sequence[Path]) -> float | None:
    finished = [e for path in made for e in read_run(path.parent).events() if e.name == "finished"]
    return float(str(finished[-1].fields["accuracy"])) if finished and "accuracy" in finished[-1].fields else None
