"""The command line, `edgegossip`: one file a command, no logic of its own. Nothing here imports
torch, grpc or flwr."""
