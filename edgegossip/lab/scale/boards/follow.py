"""A board's side: ask the operator's machine for the next cell, run it as a gossip board in a
process of its own, hand in the records. While it runs the board goes on asking, less often: that
shows that it lives, and it hears of it when the cell is given up.
"""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from edgegossip import recipe as recipes
from edgegossip.choices import did_you_mean
from edgegossip.files import write_atomic
from edgegossip.lab.scale.boards.desk import JOB, RECORDS
from edgegossip.lab.scale.boards.job import Job, parse_job
from edgegossip.mesh import address as addresses
from edgegossip.node.bootstrap import check_functions
from edgegossip.node.spec import check_names
from edgegossip.report.units import printable
from edgegossip.security.identity import Identity
from edgegossip.telemetry.run_folder import read_run
from edgegossip.types import ConfigError, EdgegossipError, HostError, PeerError, RunError

ASK_S = 1.0  # between two questions
RUNNING_ASK_S = 10.0  # the same while a cell runs, whose seconds are measured
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
    """Questions to the operator's machine, a connection each. Raises PeerError when it refuses,
    OSError when it is not there, and RunError when it has not been there for PATIENCE_S."""

    def __init__(self, following: Following, identity: Identity | None) -> None:
        self._following, self._identity = following, identity
        self._where = addresses.parse(following.operator, "--follow")
        self._port = addresses.parse(following.listen, "--listen").port
        self._heard_s = time.monotonic()

    def job(self, running: bool = False) -> dict[str, Any]:
        """What to run. `running`: a cell is, and is it still wanted?"""
        query = {"name": self._following.name, "port": self._port} | ({"running": 1} if running else {})
        return self._ask("GET", f"{JOB}?{urlencode(query)}", None)

    def wants(self, cell: str) -> bool:
        """Whether this cell, which runs here, is still wanted; yes while nobody answers."""
        try:
            return self.job(running=True).get("cell") == cell
        except OSError:
            return True

    def hand_in(self, document: Mapping[str, Any]) -> None:
        """Again and again: what was measured took long."""
        body = json.dumps(document).encode()
        while True:
            try:
                self._ask("POST", RECORDS, body)
                return
            except OSError:
                time.sleep(ASK_S)

    def _ask(self, method: str, path: str, body: bytes | None) -> dict[str, Any]:
        try:
            answer = self._answer(method, path, body)
        except OSError as error:
            if time.monotonic() - self._heard_s > PATIENCE_S:
                raise RunError(f"{self._where} was out of reach for {PATIENCE_S:.0f} s: {error}") from None
            raise
        self._heard_s = time.monotonic()
        return answer

    def _answer(self, method: str, path: str, body: bytes | None) -> dict[str, Any]:
        connection = self._connect()
        try:
            connection.request(method, path, body)
            answer = connection.getresponse()
            document = json.loads(answer.read())
        except (ConnectionError, http.client.IncompleteRead) as error:
            raise ConnectionError(f"it went away ({error})") from None
        except (ValueError, RecursionError, http.client.HTTPException) as error:
            raise PeerError(f"{self._where}: an answer that makes no sense ({error})") from None
        finally:
            connection.close()
        if answer.status != 200 or not isinstance(document, dict):
            raise PeerError(f"{self._where}: {document.get('error') if isinstance(document, dict) else answer.status}")
        return document

    def _connect(self) -> http.client.HTTPConnection:
        if self._identity is None:
            return http.client.HTTPConnection(self._where.host, self._where.port, timeout=TIMEOUT_S)
        from edgegossip.security import tls

        context = tls.caller_context(self._identity, "coordinator")
        return http.client.HTTPSConnection(self._where.host, self._where.port, timeout=TIMEOUT_S, context=context)


def follow(following: Following, say: Say) -> int:
    """Until the operator says that it is over. Returns the exit code. Raises ConfigError,
    HostError, PeerError, RunError."""
    operator = Operator(following, _identity(following))
    say(f"{following.name} asks {following.operator} what to run")
    refused = ""
    while True:
        document: Mapping[str, Any] = {}
        with suppress(OSError):
            document = operator.job()
        if document.get("state") == "over":
            say("the scalability run is over")
            return 0
        if document.get("state") == "go":
            refusal = _turn(following, operator, document, say)
            if refusal not in ("", refused):
                say(refusal)
            refused = refusal
        time.sleep(ASK_S)


def _turn(following: Following, operator: Operator, document: Mapping[str, Any], say: Say) -> str:
    """A cell from being told to handing in. Returns a sentence when either side refused it: the
    next one may do."""
    records: dict[str, Any] | None
    try:
        job = parse_job(document)
    except ValueError as error:
        refusal = f"{following.operator}: a cell that is not run here: {error}"
        records = _nothing(following, document.get("cell"), refusal)
    else:
        try:
            refusal, records = "", _run(following, job, operator.wants, say)
        except OSError as error:
            raise HostError(f"cannot run a cell in {following.runs_dir}: {error.strerror or error}") from None
    if records is None:
        return ""
    try:
        operator.hand_in(records)
    except PeerError as error:
        return refusal or printable(str(error))
    return refusal


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


def command(following: Following, job: Job, recipe: Path, runs: Path) -> list[str]:
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
    words += [word for name, where in job.peers.items() for word in ("--peer", f"{name}={where}")]
    words += [word for setting in following.settings for word in ("--set", setting)]
    words += ["--identity", str(following.identity)] if following.identity else ["--insecure"]
    return [*words, "--runs", str(runs), "--fresh"]


def _run(following: Following, job: Job, wanted: Callable[[str], bool], say: Say) -> dict[str, Any] | None:
    """One cell; the document to hand in. None when it was given up meanwhile. `wanted`: whether a
    cell still is."""
    folder = following.runs_dir / f"scale-{job.cell}-{following.name}"
    folder.mkdir(parents=True, exist_ok=True)
    recipe, before = folder / "recipe.toml", set(folder.glob("*/metrics.jsonl"))
    write_atomic(recipe, job.recipe_toml.encode())
    try:
        check_functions(recipes.load(str(recipe)), following.settings)
    except EdgegossipError as error:
        return _nothing(following, job.cell, str(error))
    say(f"runs cell {job.cell} with {len(job.peers)} others")
    with (folder / "log").open("ab") as log:
        process = subprocess.Popen(
            command(following, job, recipe, folder), stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
        try:
            code = _code(process, lambda: wanted(job.cell))
        finally:
            _stop(process)
    if code is None:
        say(f"cell {job.cell} was given up")
        return None
    made = sorted(set(folder.glob("*/metrics.jsonl")) - before)
    tail = (folder / "log").read_text(errors="replace").strip().splitlines()[-1:]
    say(f"cell {job.cell} ended with exit code {code}")
    return {
        "name": following.name,
        "cell": job.cell,
        "code": code,
        "reason": "".join(tail) if code else "",
        "metrics": made[-1].read_text(errors="replace").splitlines() if made else [],
        "accuracy": _accuracy(made[-1:]),
    }


def _code(process: subprocess.Popen[bytes], wanted: Callable[[], bool]) -> int | None:
    """Its exit code; None as soon as it is not wanted any more."""
    while True:
        try:
            return process.wait(RUNNING_ASK_S)
        except subprocess.TimeoutExpired:
            if not wanted():
                return None


def _nothing(following: Following, cell: Any, reason: str) -> dict[str, Any]:
    """What is handed in of a cell that is not run here."""
    return {"name": following.name, "cell": cell, "code": 2, "reason": reason, "metrics": [], "accuracy": None}


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
    told = finished[-1].fields.get("accuracy") if finished else None
    return float(told) if isinstance(told, (int, float)) else None  # null: it was not finite
