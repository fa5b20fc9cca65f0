"""A whole fleet as processes of this machine: check, start, watch, stop, sum up. Stands above node, flower and report."""
