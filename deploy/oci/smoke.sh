#!/bin/sh
# Try the image as it is meant to run: without root, powers or network, and with nothing to write on but its volume and /tmp.
#
#   deploy/oci/smoke.sh [IMAGE]        ENGINE=docker where that is yours
set -eu
image=${1:-edgegossip}
engine=${ENGINE:-podman}
most_bytes=$((350 * 1000 * 1000))

isolated() {
    "$engine" run --rm --network none --read-only --tmpfs /tmp:size=256m --shm-size 256m --cap-drop ALL \
        --security-opt no-new-privileges --pids-limit 1024 "$@"
}

isolated "$image" --version
isolated --interactive --entrypoint python "$image" - <<'CHECK'
import os, shutil

assert os.getuid() == 990 and not os.access("/opt/edgegossip", os.W_OK)
found = [name for name in ("sh", "bash", "apt", "dpkg", "pip", "perl", "gcc") if shutil.which(name)]
assert not found, f"the image has {found}"
try:
    open("/opt/edgegossip/x", "w")
except OSError:
    pass
else:
    raise SystemExit("the image can be written to")
print("user 990, nothing to write on but the volume and /tmp, no shell and no package manager")
CHECK
for recipe in quickstart-gossip quickstart-server; do
    isolated "$image" run "$recipe" --no-plots
done

isolated "$image" accept -o /tmp/accept.json

bytes=$("$engine" save "$image" | gzip -1 | wc -c)
echo "$image: $((bytes / 1000000)) MB to fetch"
[ "$bytes" -le "$most_bytes" ] || { echo "more than $((most_bytes / 1000000)) MB" >&2; exit 1; }
