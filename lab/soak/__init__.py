"""Fleets as people start them, for hours or in tests, and judges of what they left behind."""
