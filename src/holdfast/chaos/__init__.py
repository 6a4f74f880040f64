"""A provider that fails on request, over real sockets: for tests, and for `holdfast serve --chaos` (T6).

`faults` is the table of all that can go wrong, `reply` what is to be said, `wire` how that looks in each protocol,
`steps` how it is done or goes wrong, `provider` the server that does it, `recorded` what it was asked, `models` the
names under which anyone can ask for a fault. `holdfast.testing` shows the public part of it. Knows nothing of
`upstream`, which it is there to test.
"""
