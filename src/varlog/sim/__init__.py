"""A deterministic simulator: a whole cluster in one thread, every fault drawn from one seed.

`world` is time, processes and randomness; `network` and `disk` are what the processes stand on; `nemesis` breaks
things; `history` notes what clients saw; `checkers` say whether that was right. The code under test is the production
core, storage, journal and client: only the network, the disk and the clock are replaced.
"""
