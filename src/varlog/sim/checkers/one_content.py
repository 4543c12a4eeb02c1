"""(LSID, epoch, LLSN) names one content (rule 7).

Over every frame any replica ever stored, committed or not: two frames of one log stream and epoch that share an LLSN
are the same frame with the same content.
"""

from __future__ import annotations

from itertools import groupby

from varlog.sim.evidence import Evidence


def check(evidence: Evidence) -> list[str]:
    violations = []
    frames = sorted(evidence.frames.seen)
    for (lsid, epoch), group in groupby(frames, key=lambda frame: (frame.lsid, frame.epoch)):
        before = None
        for frame in group:
            if before is not None and before.llsn + before.entries > frame.llsn:
                places = f"{evidence.frames.seen[before]} and {evidence.frames.seen[frame]}"
                violations.append(f"LSID {lsid}, epoch {epoch}, LLSN {frame.llsn} has two contents, stored by {places}")
            if before is None or frame.llsn + frame.entries > before.llsn + before.entries:
                before = frame
    return violations
