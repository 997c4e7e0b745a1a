"""Programs that run outlive in order to show and measure it: the demo, the bench and the gameday.

The rest of outlive imports nothing from here.
"""
