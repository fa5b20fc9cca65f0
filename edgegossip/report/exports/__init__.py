"""Run folders in formats that other programs read.

columns.py      metrics, events and links as columns; CSV and Parquet files of them
trace.py        rounds and their parts for ui.perfetto.dev and chrome://tracing
tensorboard.py  event files for TensorBoard
"""
