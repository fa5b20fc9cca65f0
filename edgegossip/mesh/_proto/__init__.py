r"""Protobuf messages of proto/edgegossip/v1, generated. To make them again, from the repository's
root:

    pip install grpcio-tools==1.72.2    # protoc 30: its code runs with every protobuf from 6.30 on
    python -m grpc_tools.protoc -I edgegossip/mesh/_proto=proto/edgegossip/v1 \
        --python_out=. --pyi_out=. edgegossip/mesh/_proto/{mesh,membership}.proto
"""
