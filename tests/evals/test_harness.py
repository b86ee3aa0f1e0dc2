"""Through lm-evaluation-harness: its own adapter and ours agree, all tasks run, work is kept."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytestmark = [pytest.mark.tools, pytest.mark.filterwarnings("ignore")]  # the harness's own

from complete_mue.errors import MueError  # noqa: E402
from complete_mue.lab.data.tokenizers import ByteTokenizer  # noqa: E402
from complete_mue.lab.evals import requests as files  # noqa: E402
from complete_mue.lab.evals.harness import adapter, evaluate, harness_task, stock_adapter  # noqa: E402
from complete_mue.lab.evals.run import Settings, evaluate_answers, evaluate_model, open_run  # noqa: E402
from complete_mue.lab.evals.scoring import Generation, Scorer  # noqa: E402
from complete_mue.lab.evals.tasks import TASKS, select  # noqa: E402
from complete_mue.lab.train.huggingface import byte_tokenizer_json, export_huggingface  # noqa: E402

BYTES = ByteTokenizer()
LONGEST = 512


def quiet(what: str) -> Any:
    return lambda done, total: None


@pytest.fixture(scope="module", autouse=True)
def installed() -> None:
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        patch.setenv("HF_HUB_OFFLINE", "1")
        warnings.simplefilter("ignore")
        pytest.importorskip("lm_eval", reason="needs lm-evaluation-harness: make test-tools")


class Stock(torch.nn.Module):
    """A stock model as our scorer calls it."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model, self.layers = model, ()

    def forward(self, tokens: Any, past: Any = None, *, at: Any = None) -> Any:
        logits = self.model(tokens, past_key_values=past, use_cache=past is not None).logits
        return logits if at is None else logits[at]


@pytest.fixture(scope="module")
def stock_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random Llama with a byte tokenizer."""
    folder = tmp_path_factory.mktemp("stock")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=257, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, max_position_embeddings=LONGEST, tie_word_embeddings=False, initializer_range=0.2,
        bos_token_id=256, eos_token_id=256,
    )  # fmt: skip
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    (folder / "tokenizer.json").write_text(json.dumps(byte_tokenizer_json()))
    end = "<|endoftext|>"
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": end, "bos_token": end, "pad_token": end}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


@pytest.fixture(scope="module")
def both(stock_folder: Path) -> tuple[Any, Any]:
    """The harness's adapter and ours, of one model."""
    theirs = stock_adapter(str(stock_folder), "cpu", trust_remote_code=False)
    model = Stock(theirs.model.double().eval())  # where padding's part in a sum tips no answer
    scorer = Scorer(model, BYTES, LONGEST, batch_tokens=4096, new_cache=transformers.DynamicCache)
    return theirs, adapter(scorer, quiet)


def instances(name: str, sets: Path, limit: int) -> list[Any]:
    made = harness_task(TASKS[name], sets, 2)
    made.build_all_requests(limit=limit)
    return list(made.instances)


@pytest.mark.parametrize("name", ["arc_easy", "winogrande", "lambada"])
def test_scores_equal_the_harness_own_adapter(name: str, sets: Path, both: tuple[Any, Any]) -> None:
    """On 200 questions of three tasks: the same scores, from the same log-likelihoods."""
    theirs, ours = (evaluate(TASKS[name], lm, sets, shots=2) for lm in both)
    assert theirs == ours
    assert ours.count == 200
    found = [lm.loglikelihood(instances(name, sets, 50)) for lm in both]
    for (their_total, their_best), (our_total, our_best) in zip(*found, strict=True):
        assert our_total == pytest.approx(their_total, abs=1e-4, rel=1e-5)
        assert our_best == their_best


def test_generation_equals_the_harness_own_adapter(sets: Path, both: tuple[Any, Any]) -> None:
    theirs, ours = both
    asked = instances("svamp", sets, 12)
    for instance in asked:
        instance.args[1]["max_gen_toks"] = 24
    # Without a stop, so that there is something to compare; HFLM adds its end of text itself.
    for instance in asked:
        instance.args[1]["until"] = ["never"]
    written = ours.generate_until(asked)
    assert written == theirs.generate_until(asked)
    assert any(written)


def tiny_run(folder: Path, layout: str = "8e2a1s") -> Path:
    from complete_mue.lab.recipes import recipe
    from complete_mue.lab.train.config import override
    from complete_mue.lab.train.loop import train

    small = ("shape.width=16", "shape.depth=2", "shape.head_dim=8", "betas=hold", "budget.steps=2", "device=cpu",
             "task.sequence=256", "budget.batch_tokens=512")  # fmt: skip
    train(override(recipe(f"lm_tiny:{layout}"), *small), folder)
    return folder


def test_all_tasks_run_and_answers_from_files_score_the_same(sets: Path, tmp_path: Path) -> None:
    scorer, model = open_run(tiny_run(tmp_path / "run"), device="cpu")
    lines: list[str] = []
    settings = Settings(sets, shots=5, limit=6)
    direct = evaluate_model(
        lambda task: adapter(scorer, quiet), model, select(None), settings, tmp_path / "direct", lines.append
    )
    assert [score.task for score in direct.scores] == list(TASKS)
    assert all(score.count == 6 and score.shots == 5 and 0 <= score.score <= 1 for score in direct.scores)
    assert json.loads((tmp_path / "direct/eval.json").read_text())["tasks"]["mmlu"]["paper_count"] == 14042
    assert "| MMLU | 5 | acc |" in (tmp_path / "direct/eval.md").read_text()

    files.write_requests(
        tmp_path / "q.xz", {"shots": 5, "limit": 6}, [files.build(task, sets, 5, 6) for task in select(None)]
    )
    files.answer_requests(tmp_path / "q.xz", tmp_path / "a.xz", scorer, model, quiet)
    replayed = evaluate_answers(tmp_path / "a.xz", sets, tmp_path / "replayed", None, lines.append)
    assert replayed.scores == direct.scores

    # A second call keeps what is there, and a changed setting does not.
    def refuse(task: Any) -> Any:
        raise AssertionError(task)

    assert (
        evaluate_model(refuse, model, select(None), settings, tmp_path / "direct", lines.append).scores == direct.scores
    )
    with pytest.raises(AssertionError):
        evaluate_model(refuse, model, select(None), Settings(sets, 4, 6), tmp_path / "direct", lines.append)


def test_answers_to_other_questions_are_refused(sets: Path, tmp_path: Path) -> None:
    scorer, model = open_run(tiny_run(tmp_path / "run", "dense"), device="cpu")
    files.write_requests(tmp_path / "q.xz", {"shots": 1, "limit": 3}, [files.build(TASKS["copa"], sets, 1, 3)])
    files.answer_requests(tmp_path / "q.xz", tmp_path / "a.xz", scorer, model, quiet)
    other = tmp_path / "other"
    other.mkdir()
    lines = (TASKS["copa"].files(sets)[0]).read_bytes()
    (other / TASKS["copa"].files(sets)[0].name).write_bytes(lines)
    evaluate_answers(tmp_path / "a.xz", other, tmp_path / "same", ["copa"], lambda text: None)
    record = {"query": "Another, because", "choices": ["one", "two"], "gold": 0}
    (other / "copa.jsonl").write_text("".join(json.dumps(record | {"query": f"{n}"}) + "\n" for n in range(5)))
    with pytest.raises(MueError, match="to other questions"):
        evaluate_answers(tmp_path / "a.xz", other, tmp_path / "changed", ["copa"], lambda text: None)
    with pytest.raises(MueError, match="piqa"):
        evaluate_answers(tmp_path / "a.xz", sets, tmp_path / "more", ["piqa"], lambda text: None)


def test_examples_are_the_tasks_own(sets: Path) -> None:
    """Five before each question; MMLU's of the item's subject in file order; never the item itself."""
    mmlu = harness_task(TASKS["mmlu"], sets, 5)
    pool = TASKS["mmlu"].read(sets)["fewshot"]
    for doc in list(mmlu.test_docs())[:4]:
        text = mmlu.fewshot_context(doc, num_fewshot=5)
        examples = [p for p in pool if p["subject"] == doc["subject"]][:5]
        shown = "".join(f"{p['query']} {p['choices'][p['gold']]}\n\n" for p in examples)
        assert text == doc["description"] + shown + doc["query"]
    copa = harness_task(TASKS["copa"], sets, 5)
    for doc in list(copa.test_docs())[:50]:
        *before, last = copa.fewshot_context(doc, num_fewshot=5).split("\n\n")
        assert last == doc["query"]
        assert len(before) == 5
        assert not any(text.startswith(doc["query"]) for text in before)
    with pytest.raises(MueError, match="give fewer shots"):
        harness_task(TASKS["mmlu"], sets, 101)


def test_an_export_scores_like_its_run(sets: Path, tmp_path: Path) -> None:
    """The exported folder through the harness's own adapter against the run through ours."""
    run = tiny_run(tmp_path / "run")
    scorer, _ = open_run(run, device="cpu")
    theirs = stock_adapter(str(export_huggingface(run, tmp_path / "exported")), "cpu", trust_remote_code=True)
    asked = instances("hellaswag", sets, 5)
    found = zip(theirs.loglikelihood(asked), adapter(scorer, quiet).loglikelihood(asked), strict=True)
    for (their_total, _), (our_total, _) in found:  # folded weights are rounded: a token may be routed elsewhere
        assert our_total == pytest.approx(their_total, abs=1e-2, rel=1e-3)


def test_sampling_is_not_known() -> None:
    from complete_mue.lab.evals.harness import generation

    assert generation("a", {"until": "\n", "max_gen_toks": 3}) == Generation("a", ("\n",), 3)
    with pytest.raises(MueError, match="decode greedily"):
        generation("a", {"do_sample": True})


def test_seams_of_a_merging_tokenizer_are_the_harness_own(sets: Path, tmp_path: Path) -> None:
    """Spaces, and words that a tokenizer joins across the seam, fall where the harness puts them."""
    from types import SimpleNamespace

    from lm_eval.api.model import TemplateLM
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    from complete_mue.lab.data.tokenizers import JsonTokenizer

    library = Tokenizer(models.BPE())
    library.pre_tokenizer, library.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    texts = [doc["query"] for doc in TASKS["hellaswag"].read(sets)["test"]]
    trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=["<|endoftext|>"], show_progress=False)
    library.train_from_iterator(texts, trainer)
    library.save(str(tmp_path / "tokenizer.json"))
    tokenizer = JsonTokenizer(tmp_path / "tokenizer.json")
    pairs = [(text, " apple bridge") for text in texts[:20]]
    pairs += [(f"{text} ", "cloud") for text in texts[:20]] + [(f"{text}\n\n", "Moon é") for text in texts[:20]]
    pairs += [(text[:-2], text[-2:] + " door") for text in texts[:20]]
    harness = SimpleNamespace(tok_encode=tokenizer.encode, backend="causal")
    expected = [TemplateLM._encode_pair(harness, *pair) for pair in pairs]
    found = Scorer(Stock(None), tokenizer, LONGEST).encode_pairs(pairs)
    joined = 0
    for (before, after), (their_before, their_after) in zip(found, expected, strict=True):
        assert before.tolist() == their_before
        assert len(after)
        if their_after:
            assert after.tolist() == their_after
        else:
            joined += 1  # nothing left to score, which the harness refuses: ours is the continuation by itself
    assert joined
