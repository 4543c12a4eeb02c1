"""What a simulation exercised: how often each fault, state transition and rule branch was met.

A run that is green because nothing happened proves nothing. So whatever can happen is a member of some enum, a
`Coverage` is told of each occurrence, and it knows the whole enums: what never happened shows as a zero. Coverages of
many seeds and processes add up.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from typing import Any

from rich.table import Table


class Coverage:
    """Counters over groups of enums; a group is a heading of the table. `without` are members that cannot happen."""

    def __init__(self, groups: Mapping[str, tuple[type[Enum], ...]], without: Iterable[Enum] = ()) -> None:
        self.groups = dict(groups)
        self.without = frozenset(without)
        self.counts: Counter[Enum] = Counter()

    def observe(self, member: Enum, times: int = 1) -> None:
        """It happened."""
        self.counts[member] += times

    def add(self, counts: Mapping[Any, int]) -> None:
        """All of these happened."""
        self.counts.update(counts)

    def merge(self, other: Coverage) -> None:
        """Add what another run met, and what it could have met."""
        for title, enums in other.groups.items():
            mine = self.groups.get(title, ())
            self.groups[title] = (*mine, *(enum for enum in enums if enum not in mine))
        self.without |= other.without
        self.counts.update(other.counts)

    def rows(self) -> Iterator[tuple[str, Enum, int]]:
        """(group, member, how often) of everything that can happen."""
        for title, enums in self.groups.items():
            for enum in enums:
                for member in enum:
                    if member not in self.without:
                        yield title, member, self.counts[member]

    def zeros(self) -> list[tuple[str, Enum]]:
        """What can happen and did not."""
        return [(title, member) for title, member, times in self.rows() if times == 0]

    def totals(self) -> dict[str, int]:
        """How much happened per group."""
        found = dict.fromkeys(self.groups, 0)
        for title, _, times in self.rows():
            found[title] += times
        return found

    def as_dict(self) -> dict[str, dict[str, int]]:
        """By group and by the words of each member, for JSON."""
        found: dict[str, dict[str, int]] = {title: {} for title in self.groups}
        for title, member, times in self.rows():
            found[title][str(member.value)] = times
        return found

    def table(self) -> Table:
        """For a person; zeros stand out."""
        table = Table(title="exercised", title_justify="left")
        table.add_column("what")
        table.add_column("times", justify="right")
        last = ""
        for title, member, times in self.rows():
            if title != last:
                table.add_section()
                table.add_row(f"[bold]{title}[/bold]", "")
                last = title
            style = "bold red" if times == 0 else None
            table.add_row(f"  {member.value}", f"{times:,}", style=style)
        return table
