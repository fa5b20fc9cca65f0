"""A whole fleet as processes of this machine: check, start, watch, stop, sum up. Above node, flower
and report."""
