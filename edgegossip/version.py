"""Says which version of the package this is."""

VERSION = "0.2.0"
