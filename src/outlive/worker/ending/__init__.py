"""How attempts end: by an answer, a death or the stop of the worker; and the way of an end into the database."""
