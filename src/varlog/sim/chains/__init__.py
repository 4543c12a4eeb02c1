"""The simulator's runs of the sequencer ordering: `varlog sim --ordering sequencer`.

The same world, network, disks, metadata repositories and nemesis as for the commit ordering, with other processes in
them: nodes whose replicas are chains, sequencers, clients that write down chains, repair and reconfigure, and one that
brings back members of chains. `witness` sees every message and judges what no client could notice.
"""
