"""What a cut commits had been synced by every replica of the set before anybody was told (O1).

An acknowledgement promises that no single loss of power takes the entry away; it rests on this and on nothing else.
"""

from __future__ import annotations

from varlog.sim.evidence import Evidence


def check(evidence: Evidence) -> list[str]:
    return list(evidence.durability.early)
