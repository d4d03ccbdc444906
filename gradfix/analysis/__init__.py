"""Abstract interpretation of autograd state: source files -> facts.  Knows no rule and no LibCST."""

from __future__ import annotations

from gradfix.analysis.facts import Fact, Facts, Observations
from gradfix.analysis.modules import Project

__all__ = ["Fact", "Facts", "Observations", "Project", "explain", "observe"]


def observe(project: Project, paths) -> Observations:
    """What the analysis sees when it starts in each of `paths` (imports are followed into other files)."""
    from gradfix.analysis.interpreter import observe_file

    out = Observations()
    for path in paths:
        observe_file(project, path, out)
    return out


def explain(project: Project, path: str, line: int) -> str:
    """What the analysis believes about each value on `line` of `path`."""
    from gradfix.analysis.interpreter import explain_line

    return explain_line(project, path, line)
