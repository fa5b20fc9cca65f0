"""Repeats the tables and figures of the five papers."""
