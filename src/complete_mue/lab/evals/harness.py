"""Our tasks and our model as lm-evaluation-harness sees them: its prompts' assembly, its metrics, its standard errors.

The harness is imported only here and in what calls this, so that scoring works without it.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from complete_mue.errors import RunError
from complete_mue.lab.data.extras import in_our_words, need
from complete_mue.lab.evals.results import Score
from complete_mue.lab.evals.scoring import Answer, Generation, Scorer, Tick
from complete_mue.lab.evals.tasks import EvalTask, final_answer
from complete_mue.lab.train.trainer import pick_device

SEED = 1234  # the harness's own default for drawing examples
MOST_TOKENS = 128
STOCK_ROWS = 8


def need_harness() -> None:
    """Stop with a clear line where lm-evaluation-harness is not installed."""
    import importlib.util

    if importlib.util.find_spec("lm_eval") is None:
        raise RunError(
            "this needs lm-evaluation-harness: install it with `pip install 'complete-mue[eval]'`; a machine without "
            "it can still answer: make the questions elsewhere with --requests-out, and give them here as --requests"
        )
    for name in ("lm_eval", "lm_eval.evaluator", "lm_eval.api.task", "lm_eval.models.huggingface"):
        logging.getLogger(name).setLevel(logging.ERROR)


def harness_task(task: EvalTask, folder: Path, shots: int) -> Any:
    """The task as an lm-evaluation-harness task on local files."""
    need_harness()
    from datasets import Dataset
    from lm_eval.api.task import ConfigurableTask

    splits = task.read(folder)
    _enough_examples(task, splits, shots)
    pool = "fewshot" if task.own_pool else "test"
    metrics = (task.metric, "acc_norm") if task.kind == "choice" else (task.metric,)
    config: dict[str, Any] = {
        "task": task.name,
        "custom_dataset": lambda **_: {split: Dataset.from_list(docs) for split, docs in splits.items()},
        "test_split": "test",
        "fewshot_split": pool,
        "fewshot_config": {"sampler": "first_n" if task.by_subject else "default"},
        "num_fewshot": shots,
        "metric_list": [{"metric": name, "aggregation": "mean", "higher_is_better": True} for name in metrics],
        **_FORMS[task.kind],
    }
    if task.by_subject:
        config["description"] = "description"

    class SubjectTask(ConfigurableTask):
        """Examples of the item's own subject."""

        def fewshot_context(self, doc: dict[str, Any], num_fewshot: int, **rest: Any) -> Any:
            self.sampler.replace_df([example for example in splits[pool] if example["subject"] == doc["subject"]])
            return super().fewshot_context(doc, num_fewshot, **rest)

    made = (SubjectTask if task.by_subject else ConfigurableTask)(config=config)
    made.set_fewshot_seed(SEED)
    return made


_FORMS: dict[str, dict[str, Any]] = {
    "choice": {
        "output_type": "multiple_choice",
        "doc_to_text": "query",
        "doc_to_choice": "choices",
        "doc_to_target": "gold",
    },
    "schema": {
        "output_type": "multiple_choice",
        "doc_to_text": "gold",
        "doc_to_choice": "choices",
        "doc_to_target": "target",
    },
    "word": {
        "output_type": "loglikelihood",
        "doc_to_text": "query",
        "doc_to_target": "target",
        "target_delimiter": "",
    },
    "arithmetic": {
        "output_type": "generate_until",
        "doc_to_text": "query",
        "doc_to_target": "target",
        "generation_kwargs": {"until": ["\n"], "max_gen_toks": MOST_TOKENS, "do_sample": False},
        "process_results": lambda doc, results: {"exact_match": float(final_answer(results[0]) == doc["answer"])},
    },
}


def _enough_examples(task: EvalTask, splits: dict[str, list[dict[str, Any]]], shots: int) -> None:
    if shots < 0:
        raise RunError(f"shots = {shots}: give 0 or more")
    pool = splits.get("fewshot", splits["test"][1:])
    found, where = len(pool), "there are"
    if task.by_subject:
        have = Counter(doc["subject"] for doc in pool)
        subject = min((doc["subject"] for doc in splits["test"]), key=lambda name: have[name])
        found, where = have[subject], f"{subject} has"
    if found < shots:
        raise RunError(f"{task.name}: shots = {shots}, but {where} {found} examples; give fewer shots")


def evaluate(task: EvalTask, lm: Any, folder: Path, shots: int, limit: int | None = None) -> Score:
    """One task's score of a harness model."""
    from lm_eval.evaluator import evaluate as run

    made = harness_task(task, folder, shots)
    try:
        found = run(lm, {task.name: made}, limit=limit, log_samples=False)
    except AssertionError as problem:  # how the harness's own adapter says that a model is too short for a question
        raise RunError(f"{task.name}: lm-evaluation-harness refuses: {problem}; leave it out with --tasks") from None
    results = found["results"][task.name]
    values = {key.split(",")[0]: float(value) for key, value in results.items() if isinstance(value, int | float)}
    count = found["n-samples"][task.name]["effective"]
    others = {name: values[name] for name in ("acc_norm", "acc_norm_stderr") if name in values}
    error = values.get(f"{task.metric}_stderr", 0.0)  # the harness gives none for one document
    return Score(task.name, task.metric, values[task.metric], error, count, shots, others)


def harness_model(
    pairs: Callable[[list[tuple[str, str]]], list[Answer]], texts: Callable[[list[Generation]], list[str]]
) -> Any:
    """A model as the harness sees one, by what it answers to (context, continuation) pairs and to texts."""
    need_harness()
    from lm_eval.api.model import LM

    class Model(LM):
        """Log-likelihoods and generation."""

        def loglikelihood(self, requests: list[Any], disable_tqdm: bool = False) -> list[Answer]:
            return pairs([tuple(request.args) for request in requests])

        def loglikelihood_rolling(self, requests: list[Any], disable_tqdm: bool = False) -> list[float]:
            raise RunError("whole texts are not among the questions of these tasks")

        def generate_until(self, requests: list[Any], disable_tqdm: bool = False) -> list[str]:
            return texts([generation(*request.args) for request in requests])

    return Model()


def adapter(scorer: Scorer, progress: Callable[[str], Tick]) -> Any:
    """Our model as a harness model."""
    return harness_model(
        lambda asked: scorer.loglikelihoods(asked, progress("scoring")),
        lambda asked: scorer.generate(asked, progress("writing")),
    )


def generation(context: str, settings: dict[str, Any]) -> Generation:
    """A harness request for text as ours; only greedy decoding is known."""
    if settings.get("do_sample") or settings.get("temperature"):
        raise RunError("generation with sampling was asked for: tasks here decode greedily")
    until = settings.get("until") or []
    stops = (until,) if isinstance(until, str) else tuple(until)
    return Generation(context, stops, int(settings.get("max_gen_toks", MOST_TOKENS)))


def stock_adapter(path: str, device: str, trust_remote_code: bool) -> Any:
    """lm-evaluation-harness's own adapter for a Hugging Face checkpoint; it finds the batch size by itself on CUDA."""
    need_harness()
    need("transformers", f"the checkpoint {path}")
    from lm_eval.models.huggingface import HFLM

    place = pick_device(device)
    rows = "auto" if place.type == "cuda" else STOCK_ROWS
    advice = "give the folder of a Hugging Face model and tokenizer, with --trust-remote-code if it brings its own code"
    with in_our_words(f"hf:{path}: cannot be loaded", advice):
        return HFLM(pretrained=path, device=str(place), batch_size=rows, trust_remote_code=trust_remote_code)
