"""What is wrong with a board before it trains, a sentence with the cure for each: `edgegossip
doctor`.

facts.py    what is known of this machine: files under a root folder, and what the system says
checks.py   findings from facts, pure; and `visit`: both together, and the peers
"""
