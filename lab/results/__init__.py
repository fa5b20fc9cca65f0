"""What was measured: each module makes one table of a page in pages/, and `write` the pages."""
