"""The fleet: this worker among the others. It registers, shows that it lives, and does what any worker may do for all.

What is here may be done by several workers at once, so it is fenced or idempotent in the database.
"""
