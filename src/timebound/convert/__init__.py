"""Turns networks into ONNX files, and those into smaller ones; what comes out is compared with what went in."""
