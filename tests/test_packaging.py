"""The package: what a wheel carries, and that it runs where there is no compiler."""

import json
import lzma
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from hashlib import sha256
from importlib.metadata import requires
from pathlib import Path

import pytest
import yaml

from edgegossip.fleet.image.boards import BOARDS
from edgegossip.version import VERSION

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def names(requirements):
    return {re.match(r"[\w-]+", r).group().lower() for r in requirements}


def test_a_gossip_board_needs_ten_packages():
    board = {
        "numpy",
        "grpcio",
        "protobuf",
        "psutil",
        "click",
        "cryptography",
        "tomli-w",
        "typing-extensions",  # as grpcio does
        "zstandard",
        "setproctitle",
    }
    assert names(PROJECT["dependencies"]) == board


def test_everything_installed_is_pinned():
    pins = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if line and line[0] != "#"]
    assert all(line.count("==") == 1 for line in pins)
    pinned = {line.split("==")[0].lower().replace("_", "-") for line in pins}
    for group in [PROJECT["dependencies"], *PROJECT["optional-dependencies"].values()]:
        assert names(group) <= pinned


def test_the_changelog_has_this_version_as_keep_a_changelog_has_it():
    text = (ROOT / "CHANGELOG.md").read_text()
    versions = re.findall(r"^## \[([^]]+)\](?: - \d{4}-\d\d-\d\d)?$", text, re.MULTILINE)
    assert versions[:2] == ["Unreleased", VERSION], "a release takes what is under Unreleased"
    assert len(versions) == len(re.findall(r"^## ", text, re.MULTILINE))
    kinds = set(re.findall(r"^### (.+)$", text, re.MULTILINE))
    assert kinds <= {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}


def test_a_tag_has_the_notes_of_its_version(tmp_path):
    """By the very lines of the workflow that makes the release."""
    steps = yaml.safe_load((ROOT / ".github/workflows/wheels.yml").read_text())["jobs"]["release"]["steps"]
    (script,) = [s["run"] for s in steps if "CHANGELOG.md" in s.get("run", "")]
    (tmp_path / "dist").mkdir()
    (tmp_path / "dist/edgegossip.whl").touch()
    for name in ("CHANGELOG.md", "edgegossip"):
        (tmp_path / name).symlink_to(ROOT / name)
    env = os.environ | {"GITHUB_REF_NAME": f"v{VERSION}"}
    subprocess.run(["bash", "-euc", script], cwd=tmp_path, env=env, check=True)
    notes = (tmp_path / "notes.md").read_text()
    assert "### Added" in notes and "### Security" in notes and "## [" not in notes
    assert subprocess.run(["bash", "-euc", script], cwd=tmp_path, env=env | {"GITHUB_REF_NAME": "v9.9"}).returncode


def test_the_slow_tests_have_the_same_parts_each_week_as_in_the_makefile():
    """Any other is refused, with their names; in the part `examples` all that is drawn is drawn
    anew."""

    def make(*words):
        command = ["make", "test-slow", "ALL=", "BIN=nowhere", *words]  # nothing is installed or run
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)

    slow = yaml.safe_load((ROOT / ".github/workflows/slow.yml").read_text())["jobs"]["slow"]
    parts = json.loads(re.search(r"'(\[\".*\])'", slow["strategy"]["matrix"]["part"]).group(1))
    assert "if" not in slow and not any("if" in step for step in slow["steps"])
    refused = make("PART=lawz")
    assert "nowhere" not in refused.stderr and f"no such part; there are {' '.join(parts)}\n" in refused.stderr
    assert refused.returncode != 0
    drawn_anew = ["HYPOTHESIS_PROFILE=explore" in make("--dry-run", f"PART={part}").stdout for part in parts]
    assert drawn_anew == [part == "examples" for part in parts]


LOCKS = sorted((ROOT / "locks").glob("*.txt"))


@pytest.mark.parametrize("lock", LOCKS, ids=lambda f: f.stem)
def test_locks_have_a_hash_for_each_package_and_name_no_place(lock):
    text = lock.read_text()
    blocks = re.findall(r"^(\S+)==(\S+)((?: [^\n]*)?\n(?:    .*\n)*)", text, re.MULTILINE)
    assert blocks and len(blocks) == len(re.findall(r"^[^#\s]", text, re.MULTILINE))
    assert all("--hash=sha256:" in rest for _, _, rest in blocks)
    assert not re.search(r"https?:|file:|/opt|--(extra-)?index|--find", text)
    wanted = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line)
    wanted = {normal(name): version for name, version in wanted.items()}
    assert all(wanted.get(normal(name), v) == v.removesuffix("+cpu") for name, v, _ in blocks), (
        "as constraints.txt says"
    )


def test_locks_have_all_that_is_asked_for():
    """`make locks` was not forgotten after a change of pyproject.toml; torch is a lock of its own,
    so that a build for the CPU brings no CUDA."""
    locked = {f.stem: {normal(n) for n in re.findall(r"^(\S+)==", f.read_text(), re.MULTILINE)} for f in LOCKS}
    asked = {normal(n) for group in PROJECT["optional-dependencies"].values() for n in names(group)}
    assert asked | {normal(n) for n in names(PROJECT["dependencies"])} <= locked["developer"] | locked["torch"]
    assert locked["torch"] == locked["torch-cpu"] == {"torch"} and not [
        n for n in locked["developer"] if n.startswith(("nvidia", "cuda"))
    ]
    assert all(n.startswith(("nvidia", "cuda", "triton")) for n in locked["cuda"])
    torch = {normal(n) for n in names(n for n in requires("torch") or () if "extra ==" not in n)} - locked["cuda"]
    assert "sympy" in torch and torch <= locked["container"], "without them torch.optim ends"


def test_what_is_audited_by_hand_is_what_is_installed():
    """By the commands that CONTRIBUTING.md has, and that need nothing but those files."""
    text = (ROOT / "CONTRIBUTING.md").read_text()
    audited = re.findall(r"^pip-audit --disable-pip --require-hashes -r (\S+)$", text, re.MULTILINE)
    assert {Path(lock).parent.as_posix() for lock in audited} == {"locks", "deploy/locks"}
    assert all("--hash=sha256:" in (ROOT / lock).read_text() for lock in audited)


def normal(name):
    return re.sub(r"[-_.]+", "-", name).lower()


def test_a_bill_of_materials_of_an_image(tmp_path):
    pytest.importorskip("cyclonedx", reason="make install brings it")
    about = {"board": "raspberry-pi-4", "debian": 12, "release": "0.1.0-abc", "epoch": 0, "sha256": "ab" * 32}
    (tmp_path / "base.img.json").write_text(json.dumps({**about, "packages": {"libc6": "2.36-9+deb12u9"}}))
    command = [sys.executable, ROOT / "scripts/sbom.py", tmp_path / "base.img", tmp_path / "out.json"]
    subprocess.run(command, check=True, capture_output=True)
    found = json.loads((tmp_path / "out.json").read_text())
    urls = {c["purl"] for c in found["components"]}
    assert found["bomFormat"] == "CycloneDX" and "pkg:pypi/torch@2.9.1" in urls
    assert "pkg:deb/debian/libc6@2.36-9%2Bdeb12u9?arch=arm64&distro=debian-12" in urls
    first = (tmp_path / "out.json").read_bytes()
    subprocess.run(command, check=True, capture_output=True)
    assert (tmp_path / "out.json").read_bytes() == first


def test_a_repository_for_raspberry_pi_imager(tmp_path):
    """Imager writes no card whose hash is not `extract_sha256`, and takes fields by these names."""
    card = bytes(range(256)) * 4096
    about = {"board": "raspberry-pi-zero-2-w", "debian": 13, "release": "0.2.0-abc", "epoch": 1767225600}
    about |= {"sha256": sha256(card).hexdigest(), "size": len(card)}
    (tmp_path / "base.img.json").write_text(json.dumps(about))
    (tmp_path / "base.img.xz").write_bytes(lzma.compress(card))
    (tmp_path / "base.img").write_bytes(card)
    command = [sys.executable, ROOT / "scripts/imager.py", "https://boards.example/", "base.img.xz", "base.img"]
    done = subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    packed, plain = json.loads(done.stdout)["os_list"]
    assert packed["url"] == "https://boards.example/base.img.xz" and packed["devices"] == ["pi3-64bit"]
    for found, file in ((packed, "base.img.xz"), (plain, "base.img")):
        data = (tmp_path / file).read_bytes()
        assert found["image_download_size"] == len(data)
        assert found["image_download_sha256"] == sha256(data).hexdigest()
        assert (found["extract_size"], found["extract_sha256"]) == (len(card), sha256(card).hexdigest())
        # What doc/json-schema/os-list-schema.json of raspberrypi/rpi-imager asks of an entry.
        texts = {"name", "description", "icon", "url", "extract_sha256", "release_date", "init_format"}
        assert all(isinstance(found[key], str) for key in texts) and found["release_date"] == "2026-01-01"


def test_imager_has_a_device_for_each_board_with_an_image():
    text = (ROOT / "scripts/imager.py").read_text()
    assert all(f'"{board}": "pi' in text for board in BOARDS)


def test_a_step_of_the_set_up_says_how_far_it_is_and_why_it_failed(tmp_path):
    log = tmp_path / "log.txt"
    command = [sys.executable, "-c", "print('[3/7] Building'); print('error: no semicolon'); raise SystemExit(3)"]
    step = [sys.executable, ROOT / "scripts/progress.py", "C++ kernels", log, *command]
    done = subprocess.run(step, capture_output=True, text=True)
    assert done.returncode == 3
    said = done.stdout.splitlines()
    assert said[0].startswith("C++ kernels: file 3 of 7, ") and said[-1].startswith("C++ kernels: failed, ")
    assert "error: no semicolon" in done.stderr and str(log) in done.stderr
    assert log.read_text() == "[3/7] Building\nerror: no semicolon\n"


def without_tools(venv):
    """An environment that knows the virtual environment and the system, but no compiler, no cmake
    and no source tree."""
    bare = venv.parent / "bin"
    bare.mkdir()
    for tool in ("sh", "env", "uname", "ip", "ss"):
        for folder in ("/bin", "/usr/bin", "/sbin", "/usr/sbin"):
            if Path(folder, tool).exists() and not (bare / tool).exists():
                (bare / tool).symlink_to(Path(folder, tool))
    kept = {k: v for k, v in os.environ.items() if k.startswith(("PIP_", "LANG", "LC_", "SSL_", "HOME"))}
    return kept | {"PATH": f"{venv}/bin:{bare}", "OMP_NUM_THREADS": "1"}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", f"-Cbuild-dir={folder}/build", "--outdir"]
    path = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run([*build, folder, ROOT], capture_output=True, text=True, env=os.environ | path)
    assert done.returncode == 0, done.stdout + done.stderr
    (found,) = folder.glob("edgegossip-*.whl")
    return found


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_wheel_carries_everything_but_sources(wheel):
    held = set(zipfile.ZipFile(wheel).namelist())
    listed = subprocess.run(["git", "ls-files", "edgegossip"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("not a git checkout")
    wanted = {name for name in listed.stdout.split() if "/native/src/" not in name and (ROOT / name).exists()}
    assert wanted <= held, wanted - held
    assert {"edgegossip/py.typed"} <= held
    assert any(n.startswith("edgegossip/native/_native") and n.endswith(".so") for n in held)
    assert any(n.startswith("edgegossip/recipes/") and n.endswith(".toml") for n in held)
    assert {f"edgegossip/{p.relative_to(ROOT)}" for p in (ROOT / "devices").rglob("*.toml")} <= held
    assert not [n for n in held if n.endswith((".cpp", ".hpp", ".inc", ".pyc"))]
    assert {n.split("/")[0].split("-")[0] for n in held} == {"edgegossip"}


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_wheel_trains_in_an_empty_environment_without_compiler(wheel, tmp_path):
    venv = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", venv], check=True)
    env = without_tools(venv)
    install = [venv / "bin/python", "-m", "pip", "install", "--only-binary", ":all:", "-c", ROOT / "constraints.txt"]
    done = subprocess.run([*install, wheel, "torch"], env=env, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    run = [venv / "bin/edgegossip", "run", "quickstart-gossip", "--json"]
    done = subprocess.run(run, env=env, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert '"failed_nodes": []' in done.stdout or '"failed_nodes":[]' in done.stdout
    assert list((tmp_path / "runs").glob("*quickstart-gossip*/summary.json"))
