"""Several servers on one store (R17): who is there, and what goes on between them.

`membership` keeps this server's lease and looks for runs that nobody has; `elsewhere` is how this server looks at,
reads and commands runs of others, `inbox` how others do so with its own; `lanes` asks the store whose turn it is.
"""
