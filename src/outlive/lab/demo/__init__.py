"""`outlive demo`: the coin example, on a Postgres and workers that leave nothing behind, while things go wrong.

`example` finds the example, `process` starts its workers, `play` is what happens, `look` what the database says of it,
`verdict` whether that is right, and `show` what people see.
"""


def main(*, json: bool = False, quick: bool = False) -> int:
    """0 only if everything is as it must be."""
    from outlive.lab.demo import example

    example.reach()
    from outlive.lab.demo import play  # Now that what it needs can be imported.

    return play.main(json=json, quick=quick)
