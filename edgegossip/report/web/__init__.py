"""A run as one web page that asks nobody for anything: its data, its script and its style are
inside (docs/report.md).

tables.py   records as columns of numbers, links, spans, events: what the page shows
pack.py     columns as few bytes that a browser unpacks quickly
page.py     the page as a file
serve.py    the same page while a run goes on
static/     the page's own script and style, and uPlot (https://github.com/leeoniya/uPlot, MIT,
            static/uPlot.LICENSE)
"""
