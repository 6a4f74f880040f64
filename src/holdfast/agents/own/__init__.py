"""Agents of one's own (A3): what they are given, how what they do becomes a log, and how they are run."""
