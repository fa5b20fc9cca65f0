"""`bench mesh`: the peer mesh beside bare gRPC and a plain TCP socket, between real processes, in
the same run.

*Bare gRPC* is a stream of raw bytes over the same grpcio: identity serialisers, no framing, no
windows, no acknowledgements but one byte a frame where a time has to be taken, no assembly of
frames at the receiver, everything in one asyncio loop without a change of threads. *TCP* is a
blocking socket with TCP_NODELAY.
"""

CASES = ("throughput", "latency", "ring", "idle", "memory")
