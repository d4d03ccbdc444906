"""Many repositories in one run: one commit (or patch) per rule, a journal, a report.

    plan.py        sources, manifest and options -> jobs
    run.py         jobs -> records: journal, executor, progress
    executors.py   `concurrent.futures` executors: worker processes here, or Dask
    worker.py      the process that does one repository at a time, and its limits
    repository.py  one repository: checkout, rules, commits, verification, branch
    report.py      records -> HTML, JSON, Markdown
"""
