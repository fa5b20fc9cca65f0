"""How training grows with the number of boards: profiles of boards and fleets, and what a round
costs on them.

    devices.py      a board's and a fleet's profile: TOML files of the package or of one's own
    predict.py      seconds of a round from profiles, frame sizes, who talks to whom and the shared
                    link
    schemes.py      what `--schemes` names; cells.py: a scheme on so many boards; measure.py: its
                    row of the table
    netns/          real boards in network namespaces that share one access point

Nothing is imported here, so that each user pays for its own part only.
"""
