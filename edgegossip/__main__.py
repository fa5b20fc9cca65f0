"""`python -m edgegossip`, the same as the `edgegossip` command."""

from edgegossip.cli.main import main

main()
