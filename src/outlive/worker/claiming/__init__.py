"""Claiming: which jobs this worker asks for, and when.

What is here decides and asks; it starts no process and writes no end. The loop is in claims.py.
"""
