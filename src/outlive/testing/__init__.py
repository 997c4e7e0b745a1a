"""What tests do with jobs, whichever runner they have: outlive/pytest and outlive/django/test.py build on it.

Nothing here imports pytest: a project of Django may not have it.
"""
