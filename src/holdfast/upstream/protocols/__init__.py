"""The wire protocols of providers: what is sent, and what the bytes that come mean. No I/O (U)."""
