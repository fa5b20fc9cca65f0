"""Measuring: spans of a round, samples of the process, sinks, and the folder that keeps a run.

    clock = RoundClock()                        spans.py     where a round's wall time goes
    ProcessSampler().sample()                   system.py    CPU load and memory
    PipeSink(fd), Tee(a, b), RunFolder.create   sinks.py, tee.py, run_folder.py
    parse_record(line)                          lines.py     what a board printed
    read_run(path), summarise(...)              run_folder.py, summary.py

Nothing is imported here, so that each user pays for its own part only.
"""
