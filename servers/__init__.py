"""The bundled model server: ONNX Runtime behind an OpenAI-compatible API, in a process of its own."""
