"""Load testing for inference endpoints."""

__version__ = "0.1.0"
