"""Measurements and long trials of the real server. Not part of the tests: `make bench`, `make crash`, `make soak`."""
