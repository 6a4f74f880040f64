"""How bytes get to providers and back: the only code that opens connections to them (U14, U17).

`port` is what `http` needs; `http1` implements it with `response`, `parser` and, through a
proxy, `tunnel`; `watchdog` cuts what falls silent.
"""
