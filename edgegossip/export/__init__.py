"""`export`: trained models as ONNX files."""
