"""`export`: trained models as files: arrays by name, ONNX, programs of `torch.export`."""

from edgegossip.export.model import to_onnx

__all__ = ["to_onnx"]
