"""Handwritten digits: a Flower app whose models travel in a few bits a value."""
