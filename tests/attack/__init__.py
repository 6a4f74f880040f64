"""Attacks on a server and its tools, with counts. Short ones are tests; `make attack` plays the long ones."""
