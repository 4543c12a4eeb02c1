"""How runs of the sequencer ordering are troubled: the faults of `varlog.sim.nemesis`, as they matter for chains."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from varlog.sim.nemesis import Fault, Profile
from varlog.sim.network import Conditions

_LOSSY: Final = Conditions(mean_delay=0.002, loss=0.01, duplicate=0.06, reorder=0.5, stall=0.01, stall_seconds=2.0)
_CRASHES: Final = {
    Fault.KILL: 5.0,
    Fault.POWER_LOSS: 4.0,
    Fault.PAUSE: 2.0,
    Fault.KILL_ALL: 0.7,
    Fault.POWER_LOSS_ALL: 0.7,
}
_NETWORK: Final = {
    Fault.PARTITION_ONE_WAY: 3.0,
    Fault.PARTITION_TWO_WAY: 4.0,
    Fault.ISOLATION: 3.0,
    Fault.BAD_NETWORK: 2.0,
    Fault.TAKEOVER: 1.0,
}
_DISKS: Final = {
    Fault.DISK_FULL: 2.0,
    Fault.WRITE_ERROR: 2.0,
    Fault.SYNC_ERROR: 3.0,
    Fault.LOST_DISK: 3.0,
    Fault.BIT_ROT: 2.0,
    Fault.SLOW_DISK: 2.0,
    Fault.POWER_LOSS: 2.0,
}
_CLOCKS: Final = {
    Fault.CLOCK_JUMP: 4.0,
    Fault.CLOCK_DRIFT: 2.0,
    Fault.PAUSE: 3.0,
    Fault.KILL: 2.0,
}
_LEADERS: Final = {
    Fault.LEADER_KILL: 3.0,
    Fault.LEADER_STOP: 4.0,
    Fault.LEADER_PAUSE: 2.0,
    Fault.LEADER_DEAF: 3.0,
    Fault.STORE_CUT: 3.0,
    Fault.STORE_OUTAGE: 4.0,
    Fault.TAKEOVER: 2.0,
    Fault.KILL: 1.0,
}
_GRIND: Final = {
    Fault.SLOW_DISK: 4.0,
    Fault.POWER_LOSS: 3.0,
    Fault.POWER_LOSS_ALL: 1.0,
    Fault.KILL: 2.0,
}
CALM: Final = Profile("calm")
PROFILES: Final[Sequence[tuple[float, Profile]]] = (
    (0.5, CALM),
    (3.0, Profile("network", _NETWORK, conditions=_LOSSY)),
    (4.0, Profile("crashes", _CRASHES, interval=1.2)),
    (2.0, Profile("disks", _DISKS, interval=1.2, at_once=2)),
    (1.0, Profile("clocks", _CLOCKS)),
    (2.0, Profile("grind", _GRIND, interval=0.8, at_once=3)),
    (2.0, Profile("leaders", _LEADERS, interval=1.0, duration=1.5, at_once=2)),
    (4.0, Profile("storm", {**_LEADERS, **_CLOCKS, **_DISKS, **_NETWORK, **_CRASHES}, 0.7, 1.5, 3, _LOSSY)),
)
"""With how often each is drawn, relative to each other."""


def draw_profile(rng: random.Random, *, calm: bool = False) -> Profile:
    """A profile for a seed; rates and paces vary from seed to seed."""
    if calm:
        return CALM
    (profile,) = rng.choices([profile for _, profile in PROFILES], [weight for weight, _ in PROFILES])
    badness = rng.uniform(0.0, 2.0)
    base = profile.conditions
    conditions = replace(base, loss=base.loss * badness, duplicate=base.duplicate * badness, stall=base.stall * badness)
    return replace(profile, interval=profile.interval * rng.uniform(0.5, 2.0), conditions=conditions)
