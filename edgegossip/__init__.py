"""edgegossip: train one model together on 2-18 small boards over slow links, with a coordinator or without a server.

Importing this package costs nothing: every part is imported from its own module (`edgegossip.codecs`, `edgegossip.gossip`, ...).
"""

__version__ = "0.1.0"
