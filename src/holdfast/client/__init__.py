"""A small client of the runs API, for the terminal."""
