"""Measuring: spans of a round, samples of the process, sinks, and the folder that keeps a run.

    clock = RoundClock()                        spans.py     where a round's wall time goes
    ProcessSampler().sample()                   machine.py   CPU load and memory; sensors.py
    PipeSink(fd), Tee(a, b), RunFolder.create   sinks.py, run_folder.py
    parse_record(line)                          records.py   what a board printed
    read_run(path), summarise(...)              run_folder.py, summary.py
    Clocks().at(record)                         clocks.py    times of all nodes on one clock
    verdict.findings(evidence, boards)          verdict.py    what came out other than was asked for
    Evidence().take(record)                     evidence.py   what that goes by; cures.py has cures
    SocketMeter().sample()                      sockets.py    bytes of the process's connections

Nothing is imported here, so that each user pays for its own part only.
"""
