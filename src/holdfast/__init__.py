"""Holdfast: an agent server behind the OpenAI API that tells the truth about every stream."""

__all__ = ["__version__"]

__version__ = "0.1.0"
