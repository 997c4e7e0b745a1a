"""The laboratory: measures outlive (bench), also beside other job systems (peers), and kills its workers (gameday).

It is a package of its own, which outlive's wheel does not have, and outlive imports nothing from here. In a clone,
`./run bench` and `./run gameday` start it.
"""
