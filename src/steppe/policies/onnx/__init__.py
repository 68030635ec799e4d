"""Exports a policy as an ONNX model."""
