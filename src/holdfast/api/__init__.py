"""HTTP: every wire format is a projection of a run's log (C, P, S, J, W)."""
