"""Benchmarks: `edgegossip bench`. Each measures the product through its public functions, beside
plain rivals in the same run. Importing this package imports neither torch nor numpy.

    codecs.py         `bench codecs`: bits, entropy, error and speed of every codec
    mesh/             `bench mesh`: the peer mesh beside bare gRPC and TCP, between processes
    inputs.py         what is encoded: synthetic or real gradients, or a user's file
    gradients.py      real gradients, dumped from a training run
    torch_codecs/     every codec once more, as a researcher writes it in torch
    numpy_elias.py    Elias coding as vectorised numpy
    verify.py         `codec verify`: whether a codec keeps what it claims
    targets.py        the figures that a release has to reach
"""
