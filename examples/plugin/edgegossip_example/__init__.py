"""Adds a codec, a topology and a gossip algorithm to edgegossip."""
