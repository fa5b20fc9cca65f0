"""A board's side of `--on boards`: ask the operator's machine for the next cell, run it as a
gossip board in a process of its own, hand in the records.

While a cell runs the board goes on asking, less often: that shows that it lives, and it hears of
it when the cell is given up. The operator's machine may be anybody's where the board goes
without TLS: nothing in what it says is believed before it was looked at."""

from __future__ import annotations

import http.client
import json
import re
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
from edgegossip.mesh import address as addresses
from edgegossip.node.bootstrap import check_functions
from edgegossip.node.spec import check_names
from edgegossip.security.identity import Identity
from edgegossip.sweep.campaign import Say
from edgegossip.telemetry.run_folder import read_run
from edgegossip.types import ConfigError, EdgegossipError, HostError, NodeId, PeerError, RunError
from edgegossip.untrusted import printable

_KEY = re.compile(r"[0-9a-f]{16}")  # of scale.cells.Cell; it becomes a folder's name
JOB, RECORDS = "/v1/scale/job", "/v1/scale/records"
MAX_ANSWER_BYTES = 1 << 20  # a recipe, and where the other boards are
ASK_S = 1.0  # between two questions
RUNNING_ASK_S = 10.0  # the same while a cell runs, whose seconds are measured
TIMEOUT_S = 30.0
PATIENCE_S = 600.0  # for an operator that is away: it may be started again
STOP_S = 10.0


@dataclass(frozen=True, slots=True)
class Job:
    """Is a cell, and where its other boards listen (host:port, numeric)."""

    cell: str
    recipe_toml: str
    peers: Mapping[NodeId, str]


def parse_job(document: Mapping[str, Any]) -> Job:
    """Read what a board is to run. Raises ValueError, with a clause, for what it does not run."""
    cell, recipe, peers = (document.get(key) for key in ("cell", "recipe", "peers"))
    if not (isinstance(cell, str) and _KEY.fullmatch(cell)):
        raise ValueError("its key is not 16 hexadecimal digits")
    if not (isinstance(recipe, str) and _encodes(recipe)):
        raise ValueError("its recipe is no text")
    if not (isinstance(peers, dict) and all(_is_peer(name, where) for name, where in peers.items())):
        raise ValueError("its peers are not names with their addresses")
    return Job(cell, recipe, peers)


def _encodes(text: str) -> bool:
    """JSON can say half a character, which no file can hold."""
    return not any("\ud800" <= character <= "\udfff" for character in text)


def _is_peer(name: str, where: Any) -> bool:
    try:
        check_names("peers", (name,))
        return isinstance(where, str) and where.isprintable() and addresses.parse(where, "peers").is_numeric
    except ConfigError:
        return False


@dataclass(frozen=True, slots=True)
class FollowOptions:
    """Holds the command line of `edgegossip scale --follow`."""

    operator: str  # HOST:PORT
    name: str
    listen: str  # HOST:PORT for peers
    identity: Path | None
    insecure: bool
    settings: tuple[str, ...]  # of this board's own, such as data.dir
    runs_dir: Path


class JobClient:
    """Asks the operator's machine, with a connection for each question. Raises PeerError when it
    refuses, OSError when it is not there, and RunError when it has not been there for
    PATIENCE_S."""

    def __init__(self, options: FollowOptions, identity: Identity | None) -> None:
        self._options, self._identity = options, identity
        self._where = addresses.parse(options.operator, "--follow")
        self._port = addresses.parse(options.listen, "--listen").port
        self._heard_s = time.monotonic()

    def job(self, running: bool = False) -> dict[str, Any]:
        """Ask what to run. `running`: a cell is, and is it still wanted?"""
        query = {"name": self._options.name, "port": self._port} | ({"running": 1} if running else {})
        return self._ask("GET", f"{JOB}?{urlencode(query)}", None)

    def wants(self, cell: str) -> bool:
        """Ask whether this cell, which runs here, is still wanted; yes while nobody answers."""
        try:
            return self.job(running=True).get("cell") == cell
        except OSError:
            return True

    def hand_in(self, document: Mapping[str, Any]) -> None:
        """Hand in records, again and again until they are taken: what was measured took long."""
        head = json.dumps({key: value for key, value in document.items() if key != "metrics"})
        body = "\n".join([head, *document["metrics"]]).encode(errors="replace")
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
            found = answer.read(MAX_ANSWER_BYTES + 1)
            if len(found) > MAX_ANSWER_BYTES:
                raise PeerError(f"{self._where}: an answer of more than {MAX_ANSWER_BYTES} bytes")
            if answer.length:
                raise http.client.IncompleteRead(found, answer.length)
            document = json.loads(found)
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


def follow(options: FollowOptions, say: Say) -> int:
    """Run cells until the operator says that it is over. Returns the exit code. Raises
    ConfigError, HostError, PeerError, RunError."""
    operator = JobClient(options, _identity(options))
    say(f"{options.name} asks {options.operator} what to run")
    refused = ""
    while True:
        document: Mapping[str, Any] = {}
        with suppress(OSError):
            document = operator.job()
        if document.get("state") == "over":
            say("the scalability run is over")
            return 0
        if document.get("state") == "go":
            refusal = _turn(options, operator, document, say)
            if refusal not in ("", refused):
                say(refusal)
            refused = refusal
        time.sleep(ASK_S)


def _turn(options: FollowOptions, operator: JobClient, document: Mapping[str, Any], say: Say) -> str:
    """A cell from being told to handing in. Returns a sentence when either side refused it: the
    next one may do."""
    records: dict[str, Any] | None
    try:
        job = parse_job(document)
    except ValueError as error:
        refusal = f"{options.operator}: a cell that is not run here: {error}"
        records = _nothing(options, document.get("cell"), refusal)
    else:
        try:
            refusal, records = "", _run(options, job, operator.wants, say)
        except OSError as error:
            raise HostError(f"cannot run a cell in {options.runs_dir}: {error.strerror or error}") from None
    if records is None:
        return ""
    try:
        operator.hand_in(records)
    except PeerError as error:
        return refusal or printable(str(error))
    return refusal


def _identity(options: FollowOptions) -> Identity | None:
    check_names("--name", (options.name,))
    where = addresses.parse(options.operator, "--follow")
    if options.identity is None:
        if not (options.insecure or where.is_loopback or where.host == "localhost"):
            raise ConfigError(
                f"--follow {options.operator}: without TLS anybody on that network could say what runs here: give this board "
                "an identity (`edgegossip fleet add NAME`, then --identity DIR), or say --insecure on a network you trust"
            )
        return None
    identity = Identity.load(options.identity)
    if (identity.name, identity.role) != (options.name, "board"):
        hint = did_you_mean(options.name, [identity.name])
        raise ConfigError(
            f"--identity {options.identity} is of {identity.name} ({identity.role}), not of {options.name}{hint}"
        )
    return identity


def command(options: FollowOptions, job: Job, recipe: Path, runs: Path) -> list[str]:
    """Return what this board is to run: a gossip board that knows every peer."""
    words = [
        sys.executable,
        "-m",
        "edgegossip",
        "node",
        str(recipe),
        "--name",
        options.name,
        "--listen",
        options.listen,
    ]
    words += [word for name, where in job.peers.items() for word in ("--peer", f"{name}={where}")]
    words += [word for setting in options.settings for word in ("--set", setting)]
    words += ["--identity", str(options.identity)] if options.identity else ["--insecure"]
    return [*words, "--runs", str(runs), "--fresh"]


def _run(options: FollowOptions, job: Job, wanted: Callable[[str], bool], say: Say) -> dict[str, Any] | None:
    """One cell; the document to hand in. None when it was given up meanwhile. `wanted`: whether a
    cell still is."""
    folder = options.runs_dir / f"scale-{job.cell}-{options.name}"
    folder.mkdir(parents=True, exist_ok=True)
    recipe, before = folder / "recipe.toml", set(folder.glob("*/metrics.jsonl"))
    write_atomic(recipe, job.recipe_toml.encode())
    try:
        check_functions(recipes.load(str(recipe)), options.settings)
    except EdgegossipError as error:
        return _nothing(options, job.cell, str(error))
    say(f"runs cell {job.cell} with {len(job.peers)} others")
    with (folder / "log").open("ab") as log:
        process = subprocess.Popen(
            command(options, job, recipe, folder), stdin=subprocess.DEVNULL, stdout=log, stderr=log
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
        "name": options.name,
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


def _nothing(options: FollowOptions, cell: Any, reason: str) -> dict[str, Any]:
    """What is handed in of a cell that is not run here."""
    return {"name": options.name, "cell": cell, "code": 2, "reason": reason, "metrics": [], "accuracy": None}


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
