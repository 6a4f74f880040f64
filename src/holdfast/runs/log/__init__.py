"""A run's log: written by the recorder, read through subscriptions, folded into a transcript (R1, R6-R8)."""
