#!/bin/sh
# Makes a Jetson with JetPack a board of a fleet: install.sh [--torch WHEELS] EDGEGOSSIP_WHEEL BUNDLE
# or, where the client runs in a container whose image docker has already: install.sh --container BUNDLE
#
# Run it as root on the Jetson, from a copy of deploy/. It takes a Python that edgegossip runs on (3.11 to 3.13): of JetPack 7.2 its own,
# 3.12; of JetPack 6 the 3.11 among its packages. torch is the CPU build of the lock file, unless --torch names a wheel for that very
# Python, or a folder with that wheel and what it needs beside the lock file. May be run again: what is there is not fetched again.
set -eu
deploy=$(dirname "$(dirname "$(readlink -f "$0")")")
home=/opt/edgegossip

fail() {
    echo "install.sh: $1" >&2
    exit 1
}

torch=
container=
if [ "${1:-}" = --container ]; then
    container=yes
    wheel=
    shift
fi
if [ "${1:-}" = --torch ]; then
    [ -n "${2:-}" ] || fail "--torch takes a wheel, or a folder of wheels: --torch torch-2.13.0-cp312-cp312-linux_aarch64.whl"
    torch=$2
    shift 2
fi
if [ -z "$container" ]; then
    [ $# -eq 2 ] || fail "usage: install.sh [--torch WHEELS] EDGEGOSSIP_WHEEL BUNDLE, or install.sh --container BUNDLE"
    wheel=$1
    shift
fi
[ $# -eq 1 ] || fail "usage: install.sh --container BUNDLE"
bundle=$1
[ "$(uname -m)" = aarch64 ] || fail "this machine is $(uname -m), and no Jetson"
[ "$(id -u)" = 0 ] || fail "installing units needs root: say it again with sudo"
for file in ${wheel:+"$wheel"} "$bundle"; do
    [ -f "$file" ] || fail "$file is not there"
done
if [ -d "$torch" ]; then
    ls "$torch"/torch-*.whl >/dev/null 2>&1 || fail "$torch has no wheel of torch"
elif [ -n "$torch" ]; then
    [ -f "$torch" ] || fail "$torch is not there"
fi

client() {
    if [ -d "$torch" ]; then
        set -- "$torch"/*.whl
    elif [ -n "$torch" ]; then
        set -- "$torch"
    else
        set --
    fi
    python=
    for name in python3 python3.13 python3.12 python3.11; do
        path=$(command -v "$name") || continue
        version=$("$path" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
        lock=$(ls "$deploy"/locks/*-python"$version"-aarch64.txt 2>/dev/null | head -n 1)
        if [ -n "$lock" ] && "$path" -c 'import ensurepip' 2>/dev/null; then
            python=$(readlink -f "$path")
            break
        fi
    done
    packages="python3.11 python3.11-venv"
    ! command -v python3.12 >/dev/null || packages=python3.12-venv
    [ -n "$python" ] || fail "no Python with venv and a lock file in $deploy/locks: apt-get install $packages, then say this again"
    echo "Python $version: $python"

    release=jetson-$(cat "$lock" "$wheel" "$@" | sha256sum | cut -c 1-8)
    target=$home/releases/$release
    if [ ! -e "$target/whole" ]; then
        work=$(mktemp -d)
        trap 'rm -rf "$work"' EXIT
        "$python" -m venv "$work/venv"
        pip() {
            "$work/venv/bin/python" -m pip --quiet --disable-pip-version-check install --no-cache-dir --no-deps --target "$target/site" "$@"
        }
        rm -rf "$target"
        mkdir -p "$target/site"
        chmod 755 "$home" "$home/releases" "$target" "$target/site"
        cp "$lock" "$work/lock.txt"
        if [ $# -gt 0 ]; then
            sed -i '/^torch==/,/[^\\]$/d' "$work/lock.txt"
            echo "# torch: $(cat "$@" | sha256sum)" >>"$work/lock.txt"
            pip "$@" || fail "$torch is not for Python $version"
        fi
        pip --require-hashes --only-binary :all: --requirement "$work/lock.txt" || fail "packages could not be fetched: is there a network?"
        cp "$work/lock.txt" "$target/site/packages.lock" # by which updates know what is here
        pip "$wheel" || fail "$wheel is not for Python $version on aarch64"
        "$work/venv/bin/python" -m compileall -q --invalidation-mode unchecked-hash "$target/site" || true
        sync
        touch "$target/whole"
    fi
    ln -sfn "releases/$release" "$home/current.new"
    mv -T "$home/current.new" "$home/current"

    cp -a --no-preserve=ownership "$deploy/rootfs/usr/lib/edgegossip" /usr/lib/
    cp -a --no-preserve=ownership "$deploy"/rootfs/etc/systemd/system/. /etc/systemd/system/
    for service in firstboot guard checkin node; do
        folder=/etc/systemd/system/edgegossip-$service.service.d
        command=$(sed -n "s#^ExecStart=/usr/bin/python3#$python#p" "/etc/systemd/system/edgegossip-$service.service")
        mkdir -p "$folder"
        printf '[Service]\nExecStart=\nExecStart=%s\n' "$command" > "$folder/python.conf"
    done
    cp "$deploy/jetson/edgegossip-node.service.d/gpu.conf" /etc/systemd/system/edgegossip-node.service.d/
}

# The first boot's program and unit take the bundle, whichever way the client runs.
take_bundle() {
    mkdir -p /etc/edgegossip /boot/firmware
    touch /etc/edgegossip/grown # JetPack's own tools grow partitions, so ours leaves them alone
    install -m 600 "$bundle" /boot/firmware/edgegossip.kit
    systemctl daemon-reload
    systemctl restart edgegossip-firstboot.service ||
        fail "$(cat /boot/firmware/edgegossip-firstboot.txt 2>/dev/null || echo 'see: journalctl -u edgegossip-firstboot')"
}

# What of this board the container needs: docker knows groups by number, and a file that is not there would become a folder.
host() {
    for group in video render; do
        number=$(getent group "$group" | cut -d : -f 3)
        [ -z "$number" ] || printf ' --group-add %s' "$number"
    done
    for file in /etc/nv_tegra_release /etc/nvpmodel.conf /var/lib/nvpmodel; do
        [ ! -e "$file" ] || printf ' --volume %s:%s:ro' "$file" "$file"
    done
}

if [ -n "$container" ]; then
    docker image inspect edgegossip >/dev/null 2>&1 || fail "docker has no image edgegossip: docker load -i edgegossip.tar"
    docker info --format '{{.Runtimes}}' | grep -q nvidia ||
        fail "docker has no runtime nvidia: apt-get install nvidia-container, nvidia-ctk runtime configure, systemctl restart docker"
    cp -a --no-preserve=ownership "$deploy/rootfs/usr/lib/edgegossip" /usr/lib/
    for unit in rootfs/etc/systemd/system/edgegossip-firstboot.service jetson/edgegossip-container.service; do
        cp -a --no-preserve=ownership "$deploy/$unit" /etc/systemd/system/
    done
    folder=/etc/systemd/system/edgegossip-container.service.d
    mkdir -p "$folder"
    printf '[Service]\nEnvironment="HOST=%s"\n' "$(host)" >"$folder/host.conf"
    take_bundle
    chown -R 990 /etc/edgegossip # the container's user; nobody else may read the key
    systemctl enable edgegossip-container.service
    systemctl restart --no-block edgegossip-container.service
    echo "this Jetson is $(hostname); watch it: journalctl -fu edgegossip-container"
    exit 0
fi

client
take_bundle
for unit in edgegossip-guard.timer edgegossip-checkin.timer edgegossip-node.service; do
    systemctl restart --no-block "$unit"
done
PYTHONPATH=$home/current/site "$python" -s -m edgegossip doctor || true
echo "this Jetson is $(hostname); watch it: journalctl -fu edgegossip-node"
