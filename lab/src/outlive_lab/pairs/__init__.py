"""Every pair of statements that change a job, in every order in which they can be cut, on a real Postgres.

    scenes.py      jobs in certain places, with all that may hang on them
    actions.py     the statements; unchanging.py names those that change no job
    cuts.py        lets a session stop inside a statement
    sessions.py    two sessions that act, and one that watches them
    shapes.py      what a database holds, without what may differ
    rules.py       what must always hold
    trials.py      one pair in all its orders, and what is wrong with each
    command.py     the command and its report

How a wrong result is found: two statements must end as if one had come after the other. So each pair is first run in
both orders without a cut, and whatever the cuts lead to must equal one of the two (`trials.py`, which also lists what
is tolerated). The rules are looked at as well, because both orders could be wrong.
"""
