"""What others see of runs from outside the API: figures and traces, read off the log (S10)."""
