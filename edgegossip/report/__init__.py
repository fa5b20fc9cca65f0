"""Showing: the table at the end of a run, the live display, plots. matplotlib and rich are imported
only where they draw."""
