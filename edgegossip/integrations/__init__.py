"""Brings other training loops into a run: transformers' Trainer, Lightning's, and a torch optimiser
that exchanges as it steps.

Each is a thin user of `Run.start` and `Run.exchange`; what it integrates is an optional extra and
is imported by its own module alone."""
