"""Claiming: which jobs this worker asks for, and when, until the slots have them. The loop is in claim_loop.py.

What is here starts no process and decides no end. It writes ends, because one statement does both (end_and_claim.py).
"""
