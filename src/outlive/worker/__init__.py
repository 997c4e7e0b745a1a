"""The worker: claims, spawns, watches and reports. It imports none of the user's code."""
