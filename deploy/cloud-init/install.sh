#!/bin/sh
# Runs on a stock Raspberry Pi OS card from its first boot on (edgegossip-install.service, which user-data makes), until it has
# succeeded once: the client as on our own images. The power may go at any moment, and the network be missing: the unit says it again
# every minute and at every boot, and what is there is not fetched again. Then updates take over, and this does nothing any more.
set -eu
here=$(dirname "$(readlink -f "$0")")
root=${EDGEGOSSIP_ROOT:-} # a folder, in tests
home=$root/opt/edgegossip
words=$root/boot/firmware/edgegossip-install.txt

fail() {
    echo "edgegossip: $1" | tee "$words" >&2
    exit 1
}

[ "$(uname -m)" = aarch64 ] || fail "this card has a 32 bit system: write the 64 bit one of Raspberry Pi OS to it"
python=$(python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])')
lock=$(ls "$here"/*-python"$python"-aarch64.txt 2>/dev/null) || fail "no lock file for Python $python: use Raspberry Pi OS with Debian 13"
wheel=$(ls "$here"/edgegossip-*.whl) || fail "the wheel is missing from the boot partition: prepare the card again"
release=$(sha256sum "$lock" "$wheel" | sha256sum | cut -c 1-8)
site=$home/releases/$release/site

# Not a file of the release: updates remove that one day.
if [ "$(cat "$home/installed" 2>/dev/null)" = "$release" ]; then
    exit 0
fi

if ! python3 -m pip --version >/dev/null 2>&1; then
    export DEBIAN_FRONTEND=noninteractive
    dpkg --configure -a # of a boot that was cut short
    { apt-get --quiet update && apt-get --quiet --yes install python3-pip; } || fail "python3-pip could not be fetched: is there a network?"
fi

if [ ! -e "$home/releases/$release/whole" ]; then
    rm -rf "$home/releases/$release"
    mkdir -p "$site"
    # Each package is checked against the lock file's hashes; ours comes from the card.
    python3 -m pip install --quiet --no-cache-dir --disable-pip-version-check --root-user-action ignore --require-hashes --no-deps \
        --only-binary :all: --target "$site" --requirement "$lock" ||
        fail "packages could not be fetched: is there a network? See journalctl -u edgegossip-install"
    python3 -m zipfile -e "$wheel" "$site"
    cp "$lock" "$site/packages.lock" # by which updates know what is here
    python3 -m compileall -q --invalidation-mode unchecked-hash "$site" || true
    sync
    touch "$home/releases/$release/whole"
fi

ln -sfn "releases/$release" "$home/current.new"
mv -T "$home/current.new" "$home/current"
tar -C "$root/" -xf "$here/rootfs.tar" --no-overwrite-dir
rm -f "$words"
systemctl daemon-reload
# What the tar file switched on (links in *.wants) begins now, in its own order.
for unit in $(tar -tf "$here/rootfs.tar" | sed -n 's#.*\.wants/\(edgegossip-.*\)#\1#p'); do
    systemctl start --no-block "$unit"
done
sync
echo "$release" >"$home/installed.new"
mv -T "$home/installed.new" "$home/installed"
sync
