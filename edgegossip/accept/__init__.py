"""Everything about one machine in one command: `edgegossip accept` (docs/boards.md).

machine.py   what the probes read: a root folder, clocks, a folder to write in
bits.py      fixed inputs of every codec and int8 kernel, and the hashes that must come out
probes.py    the sections of a report, made of what doctor, calibrate, bench and verify have
verdict.py   findings from a report and the profile that predicted it, pure
page.py      a report for people: figures, text, one HTML file
run.py       all of it, in order and in time
"""
