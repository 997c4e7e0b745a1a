"""`./run gameday`: kills workers, children and sessions while jobs run, and checks that every job survives.

`jobs` is the app, `feeding` enqueues, `workers` keeps workers running, `faults` takes them down, `game` does all of it
at once. `history` is what the game saw and `tables` reads what the database holds. `checker` and `times` compare the
two; they are pure. Nothing is imported here, to keep the game out of zygotes that import its jobs.
"""
