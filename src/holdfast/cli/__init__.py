"""The `holdfast` command (T1, T2).

`main` finds the command that was asked for, `commands` has a module for each, `terminal` is what they show and ask.
The only layer that knows of the process's environment.
"""
