"""Benchmarks: `python -m lab.bench`. Each measures the product through its public functions, beside
plain rivals in the same run. Importing this package imports neither torch nor numpy.

    run_codecs.py        `bench codecs`: the command, its table and the targets of a release
    codecs.py            its rows: bits, entropy, error and speed of every codec; cases.py: which
    inputs.py            what is encoded: synthetic or real gradients, or a user's file
    torch_codecs.py      every codec once more, as a researcher writes it in torch
    torch_quantisers.py  of these the quantisers; numpy_elias.py: Elias coding in numpy
    mesh.py              `bench mesh`: the peer mesh beside bare gRPC and TCP, between processes
    mesh_cases.py        what is measured, of which processes; mesh_peers.py: one such process
    server.py            `bench server`: rounds through a coordinator, ours and stock Flower's
    server_fleets.py     one run each way; server_board.py: our board; processes.py: their processes
    int8.py              `bench int8`: a training step, or predictions, in int8 beside fp32
    profiling.py         `bench profiling`: what profiling costs a board
    timing.py            times of several functions in turn; tables.py: pages and verdicts
"""
