"""Cards for boards: root file systems, images, what a board's own card says, and writing it. For
the operator's machine alone.

build     boards.py what is known of a board; sources.py packages; client.py Python and native code
          for it; tree.py its files; fat.py, ext4.py, partitions.py the card without mounts;
          steps.py does it once (docs/images.md)
configure configure.py puts a kit onto the boot partition; cloud_init.py does the same for a stock
card
verify    verify.py looks an image through
flash     block_devices.py what the machine says of its disks, refusals.py the decision, writing.py
          the bytes
"""
