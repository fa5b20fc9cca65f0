"""Fleets of boards, around the programs that train: certificates and bundles (store.py,
provisioning.py), revocations, releases and check-ins on the operator's machine; cards (image/),
processes of runs and of single boards (launch/), and what is wrong with a machine (doctor/,
link_test.py)."""
