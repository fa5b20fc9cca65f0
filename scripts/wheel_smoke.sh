#!/bin/sh
# Install a wheel into an empty virtual environment and train with it.
#
#   scripts/wheel_smoke.sh dist         in this system, such as an empty container
#   scripts/wheel_smoke.sh dist ROOT    in the system that lies in ROOT, such as one of debootstrap; needs root
#
# The system needs python3 with venv and nothing else of ours; of the wheels in `dist` it takes the one for its Python. Packages are
# at the versions of constraints.txt, and pip goes by what PIP_... says here (PIP_FIND_LINKS: folders with a build of torch).
set -eu
here=$(cd "$(dirname "$0")/.." && pwd)
dist=$(cd "$1" && pwd)

if [ $# -gt 1 ]; then
    root=$(cd "$2" && pwd)
    mounted=""
    work=$(mktemp -d "$root/tmp/wheel-smoke.XXXXXX")
    # shellcheck disable=SC2329
    leave() {
        for place in $mounted; do umount "$place"; done
        rm -rf "$work"
    }
    trap leave EXIT
    trap 'exit 130' INT TERM
    attach() {
        if [ -d "$1" ]; then mkdir -p "$root$1"; else mkdir -p "$root$(dirname "$1")" && touch "$root$1"; fi
        mount --bind "$1" "$root$1"
        mounted="$root$1 $mounted"
    }
    for place in /proc /dev /dev/shm /etc/resolv.conf "${PIP_CERT:-}" ${PIP_FIND_LINKS:-}; do
        if [ -e "$place" ]; then attach "$place"; fi
    done
    mkdir "$work/scripts" "$work/dist"
    cp "$0" "$work/scripts/wheel_smoke.sh"
    cp "$here/constraints.txt" "$work"
    cp "$dist"/edgegossip-*.whl "$work/dist"
    inside=${work#"$root"}
    chroot "$root" /usr/bin/env -i HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 OMP_NUM_THREADS=1 \
        PIP_CERT="${PIP_CERT:-}" PIP_FIND_LINKS="${PIP_FIND_LINKS:-}" \
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
"$python" -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir --only-binary :all: \
    --constraint "$here/constraints.txt" "$found" torch
cd "$work"
"$work/venv/bin/edgegossip" codec verify qsgd
"$work/venv/bin/edgegossip" run quickstart-gossip --json >summary.json
"$work/venv/bin/python" - "$found" <<'CHECK'
import json, platform, sys

summary = json.load(open("summary.json"))
accuracy = summary["accuracy"]["mean"]
if summary["failed_nodes"] or summary["verdict"] or accuracy < 0.9:
    sys.exit(f"it does not train as it should: {accuracy:.3f}, {summary['failed_nodes']}, {summary['verdict']}")
system = platform.freedesktop_os_release()["PRETTY_NAME"]
print(f"{sys.argv[1].rpartition('/')[2]} trains on {system}, Python {platform.python_version()}: {accuracy:.1%}")
CHECK
