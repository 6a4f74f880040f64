"""The terminal tool."""
