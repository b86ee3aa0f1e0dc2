"""Reads the records of a sweep and shows whether the transfer held. Reads records, never models; needs no torch.

fit         the optimum of one loss curve
values      the runs of one curve: means over seeds, and their noise
curves      optimum, drift and regret of one target, with errors from the seeds
speedup     steps of the reference for one step of the target, to the same loss
verdict     what it means, in plain words
summary     all of it for one sweep: ``summarize(folder)``
overview    the verdict on many sweeps together
tables, pictures -> svg, html, plots, files     for the terminal, the page, PNG, JSON, CSV, Markdown
article     many sweeps on one Markdown page, which may hold words of one's own
"""

from complete_mue.lab.records import find_sweeps, read_sweep
from complete_mue.lab.report.fit import Basin, Optimum, optimum_of
from complete_mue.lab.report.speedup import Speedup, speedup_curves
from complete_mue.lab.report.summary import Summary, summarize

__all__ = [
    "Basin",
    "Optimum",
    "Speedup",
    "Summary",
    "find_sweeps",
    "optimum_of",
    "read_sweep",
    "speedup_curves",
    "summarize",
]
