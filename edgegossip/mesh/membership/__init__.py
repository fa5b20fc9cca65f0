"""Who is in the run, without a server: a failure detector that needs no I/O, the run's manifest,
and the service for both.

`protocol` has what a board knows of the others and what members say, `detector` the state machine
(SWIM with Lifeguard's lessons), `wire` the messages' bytes, `manifest` what the run is. `agent`
puts them on the mesh's port and tells the log and the node, `client` calls the others and asks the
first question. docs/membership.md tells how it behaves.
"""
