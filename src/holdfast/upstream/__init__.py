"""Asking models (U).

A call goes down, `router > fallback > provider_upstreams > retry > http > transport`; what comes of it goes back up,
`transport > stream_reader > protocols > the caller's sink`, as plain calls in the step in which it came. `port` is
all that the layers above know. `protocols` does no I/O, `transport` knows no protocol, and `http` is where the two
meet.
"""
