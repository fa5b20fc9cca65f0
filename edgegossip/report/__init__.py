"""Showing what a run did or does. matplotlib and rich are imported only where they draw.

table.py      the tables at the end of a run
progress.py   what is known of a run while it goes on; live.py shows it, live_rich.py with rich
plots.py      the plots of a run; series.py gives them curves, draw.py draws
models.py     the models that a run left
openmetrics.py, json_log.py   records for Prometheus, and for collectors of logs
exports/      the records in other programs' formats
web/          one page that has it all
units.py      numbers and texts as people read them
"""
