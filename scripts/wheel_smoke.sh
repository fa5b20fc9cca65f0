#!/bin/sh
# Install a wheel into an empty virtual environment and train with it.
#
#   scripts/wheel_smoke.sh dist         in this system, such as an empty container
#   scripts/wheel_smoke.sh dist ROOT    in the system that lies in ROOT, such as one of debootstrap; needs root
#                                       one for another processor runs emulated, where binfmt_misc knows by what
#
# The system needs python3 with venv and nothing else of ours; of the wheels in `dist` it takes the one for its Python and machine.
# Packages are at the versions of constraints.txt, and pip goes by what PIP_... says here (PIP_FIND_LINKS: folders with a build of
# torch). TORCH=torch==2.9.1 takes another torch than constraints.txt names.
set -eu
here=$(cd "$(dirname "$0")/.." && pwd)
dist=$(cd "$1" && pwd)

if [ $# -gt 1 ]; then
    root=$(cd "$2" && pwd)
    # What is mounted goes with the namespace, however this ends.
    [ "${WHEEL_SMOKE_ALONE:-}" ] || exec env WHEEL_SMOKE_ALONE=1 unshare --mount --propagation private sh "$0" "$dist" "$root"
    work=$(mktemp -d "$root/tmp/wheel-smoke.XXXXXX")
    trap 'rm -rf "$work"' EXIT
    trap 'exit 130' INT TERM
    for place in /proc /dev /dev/shm /etc/resolv.conf "${PIP_CERT:-}" ${PIP_FIND_LINKS:-}; do
        [ -e "$place" ] || continue
        if [ -d "$place" ]; then mkdir -p "$root$place"; else mkdir -p "$root${place%/*}" && touch "$root$place"; fi
        mount --bind "$place" "$root$place"
    done
    mkdir "$work/scripts" "$work/dist"
    cp "$0" "$work/scripts/wheel_smoke.sh"
    cp "$here/constraints.txt" "$work"
    cp "$dist"/edgegossip-*.whl "$work/dist"
    inside=${work#"$root"}
    chroot "$root" /usr/bin/env -i HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 OMP_NUM_THREADS=1 \
        PIP_CERT="${PIP_CERT:-}" PIP_FIND_LINKS="${PIP_FIND_LINKS:-}" PIP_EXTRA_INDEX_URL="${PIP_EXTRA_INDEX_URL:-}" TORCH="${TORCH:-}" \
        sh "$inside/scripts/wheel_smoke.sh" "$inside/dist"
    exit
fi

python=${PYTHON:-python3}
tag=$("$python" -c 'import sys; print("cp311-cp311" if sys.version_info < (3, 12) else "cp312-abi3")')
found=$(find "$dist" -name "edgegossip-*-$tag-*_$(uname -m).whl")
[ -f "$found" ] || { echo "not one wheel for $tag and $(uname -m) in $dist: ${found:-none}" >&2; exit 1; }

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
[ -n "${PIP_CERT:-}" ] || unset PIP_CERT
torch=${TORCH:-$(grep '^torch==' "$here/constraints.txt")}
grep -v '^torch==' "$here/constraints.txt" >"$work/constraints.txt"
"$python" -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir --only-binary :all: \
    --constraint "$work/constraints.txt" "$found" "$torch"
cd "$work"
"$work/venv/bin/edgegossip" codec verify qsgd
"$work/venv/bin/edgegossip" run quickstart-gossip --json >summary.json
"$work/venv/bin/python" - "$found" <<'CHECK'
import json, platform, sys
from importlib.metadata import version

summary = json.load(open("summary.json"))
accuracy, sent = summary["accuracy"]["mean"], summary["sent_bytes"]["payload"]
done = all(board["state"] == "finished" and board["rounds"] == summary["rounds_asked"] for board in summary["boards"])
if not done or summary["failed_nodes"] or summary["verdict"] or accuracy < 0.9:
    sys.exit(f"it does not train as it should: {accuracy:.3f}, {summary['failed_nodes']}, {summary['verdict']}")
# A board that trains by itself comes to 0.9, too. Float32 to both neighbours in every round: 76.9 MB.
if sent < 76e6:
    sys.exit(f"boards do not exchange as they should: they sent {sent / 1e6:.1f} MB")
system = platform.freedesktop_os_release()["PRETTY_NAME"]
on = f"{system}, {platform.machine()}, Python {platform.python_version()}, torch {version('torch')}"
what = f"{accuracy:.1%}, {sent / 1e6:.1f} MB sent, in {summary['seconds']:.0f} s"
print(f"{sys.argv[1].rpartition('/')[2]} trains on {on}: {what}")
CHECK
