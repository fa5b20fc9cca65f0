"""A run as one web page without network requests: its data, its script and its style are inside
(docs/report.md).

view.py     what the page shows of a run, as columns of numbers and a document
page.py     the page as a file
serve.py    the same page while a run goes on
http.py     servers that only show, to whoever reaches them
static/     the page's own script and style, and uPlot (https://github.com/leeoniya/uPlot, MIT,
            static/uPlot.LICENSE)
"""
