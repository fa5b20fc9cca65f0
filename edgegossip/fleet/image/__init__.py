"""Cards for boards: root file systems, images, what a board's own card says, and writing it. For
the operator's machine alone.

build       boards.py what is known of a board; rootfs.py Debian; wheel.py and client.py Python and
            native code for it; filesystems.py and disk.py the card without mounts; steps.py does it
            once (docs/images.md)
configure   configure.py puts a provisioning bundle onto the boot partition
verify      verify.py looks an image through, private_keys.py for what must not be in it
flash       refusals.py what lsblk says of a disk and the decision, flashing.py the bytes
"""
