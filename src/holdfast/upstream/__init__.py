"""Reading a model's stream (U)."""
