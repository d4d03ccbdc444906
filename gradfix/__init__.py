"""GradFix finds and repairs PyTorch autograd mistakes in source code."""

__version__ = "0.1.0"
