"""Who is in the run, without a server: a failure detector that needs no I/O, the run's manifest, and the service for both.

`table` is what a board knows of the others, `detector` the protocol (SWIM with Lifeguard's lessons), `manifest` what the run is;
`service` and `agent` put them on the mesh's port. docs/membership.md tells how it behaves.
"""
