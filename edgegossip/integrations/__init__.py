"""Brings other training loops into a run: transformers' Trainer, Lightning's, and a torch optimiser
that exchanges as it steps; and a run into experiment trackers: MLflow, Weights & Biases.

Each loop is a thin user of `Run.start` and `Run.exchange`, each tracker a sink of records; what it
integrates is an optional extra and is imported by its own module alone."""
