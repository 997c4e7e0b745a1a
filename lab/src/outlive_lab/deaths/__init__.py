"""Many deaths in little time: virtual workers, which are database sessions without processes, die one after the other.

The statements are those of outlive, and so are the watchers. The checker (checker.py) shares no code with either: it
compares what the virtual workers and clients have seen (history.py) with what the tables hold.
"""
