"""What was measured: each module makes one table of docs/results, and this package the pages of
all."""
