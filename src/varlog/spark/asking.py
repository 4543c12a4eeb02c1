"""Whether a text of SQL only asks, or has Spark do something; found out before any of it is done.

Spark does a command as soon as it is told of it, and some of them while it still makes a plan: `CALL`, `EXECUTE
IMMEDIATE` and scripts. So this looks at the text as it was parsed, and then at the plan that Spark makes of it without
running anything, because a name that has to be computed first (`IDENTIFIER`) hides until then what is done with it.
The first word of a text says nothing: an `INSERT` may come behind `WITH` or `FROM`.

What must always hold: nothing is done but by queries, and by commands that tell something and no more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_TELLING: Final = ("Show", "Describe", "Explain")
"""What the names of commands begin with that change nothing."""
_DOING: Final = ("Call", "InsertIntoDir", "UnresolvedExecuteImmediate", "UnresolvedInsert")
"""What does something, and is neither a command nor a statement by its class."""
_PLANS: Final = "org.apache.spark.sql.catalyst.plans.logical"


def only_asks(spark: SparkSession, text: str) -> bool:
    """Whether it changes nothing; Spark's own error if it cannot be understood."""
    java: Any = spark._jvm
    state: Any = spark._jsparkSession.sessionState()
    parsed = state.sqlParser().parsePlan(text)
    if not _changes_nothing(java, parsed):
        return False
    without_running = java.org.apache.spark.sql.execution.CommandExecutionMode.SKIP()
    return _changes_nothing(java, state.executePlan(parsed, without_running).analyzed())


def _changes_nothing(java: Any, plan: Any) -> bool:
    """Of every part of a plan, and of what it explains."""
    parts = [plan]
    while parts:
        part = parts.pop()
        kind = part.getClass().getSimpleName().removesuffix("$")
        if kind in _DOING or (_is_command(java, part) and not kind.startswith(_TELLING)):
            return False
        children = part.children()
        parts += (children.apply(index) for index in range(children.size()))
        if kind == "ExplainCommand":
            parts.append(part.logicalPlan())
    return True


def _is_command(java: Any, part: Any) -> bool:
    is_one = java.py4j.reflection.TypeUtil.isInstanceOf
    return any(is_one(f"{_PLANS}.{name}", part) for name in ("Command", "ParsedStatement"))
