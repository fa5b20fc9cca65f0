"""Who is in the run, without a server: a failure detector that needs no I/O, the run's manifest,
and the service for both.

`table` is what a board knows of the others, `detector` the protocol (SWIM with Lifeguard's
lessons), `messages` what members say and its bytes, `manifest` what the run is; `agent` puts them
on the mesh's port, `reach` finds and calls the others, `news` tells the log and the node, `joining`
asks the first question. docs/membership.md tells how it behaves.
"""
