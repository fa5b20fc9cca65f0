"""How training grows with the number of boards: profiles of boards and fleets, and what a round
costs on them.

devices.py      a board's and a fleet's profile: TOML files of the package or of one's own
calibrate.py    a profile of the machine that it runs on; cost.py counts operations and memory
predict.py      seconds of a round from profiles, frame sizes, who talks to whom and shared links
plan.py         what a run will be like on a fleet, before anything runs

cells.py        schemes, and a scheme on so many boards; what runs such cells is a `Backend`:
  model.py      on a virtual clock
  job_server.py real boards that ask this machine what to run; follow.py is their side
summary.py      rows, table, verdicts and plots
campaign.py     the command: `sweep.campaign` for cells

Nothing is imported here, so that each user pays for its own part only.
"""
