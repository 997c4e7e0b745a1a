"""Processes that live no longer than the one that starts them: programs, workers, and an embedded server.

The demo, the plugin for pytest and the laboratory start them.
"""
