"""`./run bench --peers`: other job systems beside outlive, on the same machine, with the same jobs, in alternation.

`peers.toml` names the systems, their versions and settings. `environments` installs them, `session` runs one of them
once, `contest` runs all of them in turn, `results` holds what must be reached. Their clients are in `drivers`.
"""
