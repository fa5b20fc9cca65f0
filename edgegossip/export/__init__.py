"""`export`: trained models as ONNX files."""

from edgegossip.export.model import to_onnx

__all__ = ["to_onnx"]
