"""Reads the records of a sweep and shows whether the transfer held. Reads records, never models; needs no torch.

estimator      optimum and regret of one loss curve, with errors from the seeds
curves         the runs of one target, value by value, and what the estimator makes of them
speedup        steps of the reference for one step of the target, to the same loss
verdict        what it means, in plain words
summary        all of it for one sweep: ``summarize(folder)``
across_sweeps  the verdict on many sweeps together
tables, pictures -> html_page, write                for the terminal, the page, SVG, JSON, CSV, Markdown
markdown_page  many sweeps on one Markdown page, which may hold words of your own
"""

from complete_mue.lab.records import find_sweeps
from complete_mue.lab.report.estimator import optimum_of
from complete_mue.lab.report.speedup import speedup_curves
from complete_mue.lab.report.summary import Summary, summarize

__all__ = [
    "Summary",
    "find_sweeps",
    "optimum_of",
    "speedup_curves",
    "summarize",
]
