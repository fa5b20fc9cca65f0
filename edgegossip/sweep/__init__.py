"""What studies and scalability runs share: campaigns over many cases.

campaign.py   what has no result yet is run, on several processes if asked; then tables and plots
results.py    results that survive kill -9, so that a campaign is resumed
table.py      text, Markdown and CSV of the same cells
plots.py      figures, with matplotlib
"""
