"""Programs for people who work on outlive; no part of the package."""
