"""The blocks of a baseline. Form and meaning: docs/reference/baselines.md."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from appliance.policy.schema.base import Block, Field
from appliance.policy.schema.identifiers import NAME, FreeText, Path
from appliance.policy.schema.kinds import Kind, ListOf, Mismatch, Pick, SetOf, Switch, Whole

TEXT = FreeText(1, 600)


@dataclass(frozen=True)
class AnyLiteral(Kind):
    """A text, a number, `true` or `false`: the field that a rule is about decides which."""

    def parse(self, value: Any) -> Any:
        """Return the literal itself."""
        if not isinstance(value, str | int | float):
            raise Mismatch("is a list or an object", "write one value")
        return value

    def allowed(self) -> str:
        """Say in words what is allowed."""
        return "a text, a number, true or false"


@dataclass(frozen=True)
class AnyList(SetOf):
    """A list of such values, of different types where the field has them."""

    def finish(self, items: Any) -> tuple[Any, ...]:
        """Return the items in their order."""
        if not self.low <= len(items) <= self.high:
            raise Mismatch(f"has {len(items)} items", "add what is missing" if len(items) < self.low else "remove some")
        return tuple(items)


ONE, SEVERAL = AnyLiteral(), AnyList(AnyLiteral(), 1)


class Demand(Block):
    """One field of a deployment, and what it must be. Where several demands stand, all must
    hold."""

    field: Annotated[str, FreeText(1, 200)] = Field(description="The field's path, without labels of blocks that a "
                                                     "policy names itself: each such block is looked at.")
    equals: Annotated[Any, ONE] = Field(default=None, description="The field's only value.")
    one_of: Annotated[Any, SEVERAL] = Field(default=None, description="The values of which it has one.")
    none_of: Annotated[Any, SEVERAL] = Field(default=None, description="Values that neither it nor its list has.")
    only: Annotated[Any, SEVERAL] = Field(default=None, description="All items that its list may have.")
    has: Annotated[Any, SEVERAL] = Field(default=None, description="Items that its list must have.")
    at_least: Annotated[Any, ONE] = Field(default=None, description="The lowest value.")
    at_most: Annotated[Any, ONE] = Field(default=None, description="The highest value.")
    present: Annotated[bool | None, Switch()] = Field(
        default=None, description="Whether the field has a value, or the block stands. An empty list has none.")
    count: Annotated[int | None, Whole(1, 256)] = Field(
        default=None, description="The least number of its blocks, or of items in its list.")
    absent: Annotated[Literal["passes", "fails"] | None, Pick(("passes", "fails"))] = Field(
        default=None, description="What a field without a value does; absent: it fails, but for `none_of`.")


class Circumstance(Demand):
    """The demand that a policy must meet for a rule to apply. Where both fields stand in one
    labelled block, each block is looked at for itself."""


class BaselineRule(Demand):
    """A rule of a baseline. The label is its id."""

    LABEL: ClassVar[str | None] = "id"

    id: Annotated[str, NAME] = Field(description="The id, which is stable: waivers and tickets name it.")
    severity: Annotated[Literal["error", "warning"], Pick(("error", "warning"))] = Field(
        default="error", description="The weight of a failure: an error fails the check, a warning is only shown.")
    reason: Annotated[str, TEXT] = Field(description="Why the rule is there, in a sentence or two.")
    controls: Annotated[tuple[str, ...], ListOf(FreeText(1, 100), 1)] = Field(
        default=(), description="Controls that it serves, each a framework and a clause.")
    attack: Annotated[str | None, TEXT] = Field(
        default=None, description="The attack that it answers, as docs/attacks.md names it.")
    when: Circumstance | None = Field(default=None, description="Where the rule applies; absent: everywhere.")


class Header(Block):
    """The baseline itself."""

    name: Annotated[str, NAME] = Field(description="Its name, which stands before the ids of its rules.")
    summary: Annotated[str, TEXT] = Field(description="The deployments that it is for.")
    includes: Annotated[tuple[str, ...], ListOf(Path(), 1, 16)] = Field(
        default=(), description="Files beside it whose rules also hold.")


class BaselineFile(Block):
    """A file with a baseline."""

    baseline: Header = Field(description="Name and purpose.")
    rules: tuple[BaselineRule, ...] = Field(alias="rule", default=(), description="Its rules, in the order of ids.")
