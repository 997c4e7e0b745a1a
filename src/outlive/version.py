"""The version, where everybody can import it."""

VERSION = "0.1.0"
