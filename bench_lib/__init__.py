"""Performance regression testing for PyTorch on GPUs."""

__version__ = "0.1.0"
