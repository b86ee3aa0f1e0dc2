"""Evaluation: the paper's 13 tasks through lm-evaluation-harness, for our runs and for Hugging Face checkpoints.

tasks       what is asked: prompts, metrics, counts, chance levels, from local files
scoring     what a model answers: log-likelihoods and generation, with torch alone
harness     the tasks as lm-evaluation-harness sees them, and our model as it sees one
requests    questions and answers as files, for a machine that has the model but not the harness
results     scores, as a table, JSON and Markdown
"""
