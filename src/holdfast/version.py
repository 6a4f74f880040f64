"""Which version this is. Vocabulary: imports nothing of ours."""

__version__ = "0.1.0"
