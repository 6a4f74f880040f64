"""What becomes of runs whose server is gone: closed honestly, or gone on with (R8, R15, R16)."""
