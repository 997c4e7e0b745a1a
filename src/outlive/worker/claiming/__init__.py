"""Claiming: which jobs this worker asks for, and when. The loop is in claim_loop.py."""
