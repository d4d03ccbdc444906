"""What the analysis observed, and the merged view that rules read."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

from gradfix.findings import Problem, Span


@dataclass(slots=True)
class Fact:
    """One observation in one context.  `info` holds what the rule needs for its message and fix."""

    kind: str
    path: str
    span: Span
    statement: Span
    bad: bool
    info: dict = field(default_factory=dict)
    concrete: bool = True


@dataclass
class Observations:
    facts: list[Fact] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    functions: int = 0
    interpreted: int = 0

    @cached_property
    def by_place(self) -> dict[tuple, list[Fact]]:
        """(kind, path, span) -> the facts there, in order."""
        out: dict[tuple, list[Fact]] = {}
        for fact in self.facts:
            out.setdefault((fact.kind, fact.path, fact.span), []).append(fact)
        return out

    @cached_property
    def bad_places(self) -> set[tuple]:
        return {(fact.kind, fact.path, fact.span) for fact in self.facts if fact.bad}


class Facts:
    """All observations of a run, merged by place."""

    def __init__(self, project, observations, options=None):
        self.project = project
        self.options = options or {}  # rule's name -> its options in the config
        self.observations = list(observations)
        self.problems = [p for o in self.observations for p in o.problems]
        self._by_kind: dict[str, dict] = {}
        self._syntax: dict = {}
        # Places where nothing is wrong are left out: they are many, and no rule asks for them.
        wrong = set().union(*(obs.bad_places for obs in self.observations))
        for obs in self.observations:
            for key in wrong & obs.by_place.keys():
                places = self._by_kind.setdefault(key[0], {})
                places.setdefault(key[1:], []).extend(obs.by_place[key])

    def text(self, path: str) -> str:
        return self.project.text(path)

    def syntax(self, path: str):
        """The parsed file with parent links (made once)."""
        if path not in self._syntax:
            self._syntax[path] = self.project.module(path).syntax
        return self._syntax[path]

    def bad(self, kind: str):
        """(fact, all facts at its place) for each place that some context shows to be wrong, in source order.

        What a function does with arguments that nobody is seen to pass counts only where no caller is seen.
        """
        for key in sorted(self._by_kind.get(kind, {}), key=lambda k: (k[0], k[1])):
            facts = self._by_kind[kind][key]
            concrete = [f for f in facts if f.concrete] or facts
            wrong = [f for f in concrete if f.bad]
            if wrong:
                yield wrong[0], concrete
