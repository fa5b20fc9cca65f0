"""New releases of the program for boards that are far away: signed bundles, and how one becomes a
folder on a board (docs/updates.md). The programs that switch to it and back are the image's
(deploy/rootfs), for a release may not run.
"""
