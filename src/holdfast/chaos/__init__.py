"""A provider that fails on request, over real sockets: for tests, and for `holdfast serve --chaos` (T6)."""
