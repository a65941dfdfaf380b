"""Load testing for inference endpoints."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("loadtest")
except PackageNotFoundError:  # run from a source tree that was never installed
    __version__ = "0+source"
