"""The command line, `edgegossip`: one file a command group, no logic of its own; each command's
options are declared in a dataclass (`options.py`). Nothing here imports torch, grpc or flwr."""
