"""`outlive demo`: runs the coin example on a temporary Postgres, while jobs and a worker are killed.

`example` finds the example, `play` runs it, `snapshot` reads the database, `verdict` checks the result, and `show`
prints everything.
"""


def main(*, json: bool = False, quick: bool = False) -> int:
    """0 only if every check holds."""
    from outlive.lab.demo import example

    example.reach()
    from outlive.lab.demo import play  # It imports the example.

    return play.main(json=json, quick=quick)
