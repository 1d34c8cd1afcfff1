"""Models the suite measures: the catalogue, their weights, their export to ONNX and their inputs."""
