"""The planner in the browser: `mue web`. Plans and reports by the same functions as the command line; needs no torch.

fields      the form's parameters, or a pasted config.json -> the two files of `mue plan`, read as the command line does
texts       a plan as files: Python that makes it again, other trainers' configs, JSON, CSV
compare     rule sets side by side
plot        lr and init std of a role along an axis
picture     a feed-forward block as SVG, active experts lit
answer      all that the page shows of one plan
runs        the sweeps of a folder and their reports, live
guard       what a request may be: host, method, sizes; and the headers of every response
timed       connections that neither ask nor listen are closed
server      the routes; serve(folder, host, port)
static/     one page, one style sheet, one script; presets.json, reference and target shapes to start from
"""
