"""Property tests leave no file behind, and a busy machine does not fail them."""

from hypothesis import settings

settings.register_profile("quiet", database=None, deadline=None)
settings.load_profile("quiet")
