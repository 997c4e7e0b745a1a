"""How attempts end: by an answer, by a death, or because the worker stops; and the way of an end into the database.

What is here decides an outcome once, and keeps it until the database has it.
"""
