"""The protocol, without I/O.

Every decision of the system (order, commit, seal, recovery, retry) is made here by plain state machines: an event goes
in, messages come out, time is handed in. Nothing in this package opens a file or a socket, reads a clock or draws a
random number, so the same code runs in production, in unit tests and in the simulator. A test enforces it.

Where to start: `executor` is one replica, `storagenode` the node around it, `metarepo` turns reports into the global
order, `manager` brings log streams back after a restart, `appending` and `merging` are the client's half.
"""
