"""Serving an application over HTTP: which sockets, which server, from the first connection to the last saved run."""
