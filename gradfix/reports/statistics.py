"""How often each rule found something."""

from __future__ import annotations

from collections import Counter

from gradfix.reports import Report


def rows(report: Report) -> list[dict]:
    count: Counter = Counter()
    fixable: Counter = Counter()
    for f in report.findings:
        count[f.code, f.name] += 1
        fixable[f.code, f.name] += f.fix is not None
    ordered = sorted(count, key=lambda k: (-count[k], k))
    return [{"code": k[0], "name": k[1], "count": count[k], "fixable": fixable[k]} for k in ordered]


def write(report: Report, out, output_format: str = "full") -> None:
    table = rows(report)
    if output_format in ("json", "json-lines"):
        from gradfix.reports.json import dumps

        out.write(dumps(table) + "\n" if output_format == "json" else "".join(dumps(r) + "\n" for r in table))
        return
    if not table:
        return
    wide = max(len(str(r["count"])) for r in table)
    names = max(len(r["name"]) for r in table)
    for r in table:
        fix = f"  {r['fixable']} fixable" if r["fixable"] else ""
        out.write(f"{str(r['count']).rjust(wide)}  {r['code']}  {r['name'].ljust(names)}{fix}".rstrip() + "\n")
