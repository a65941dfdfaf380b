"""Choosing on the host: reproducible, within the allowed ids, and distributed as asked."""

import numpy as np
import pytest

from servers.sampling import Sampler, greedy, scores
from servers.tokenizer import BYTES, EOS, GENERATED

VOCAB = 512
WITH_EOS, WITHOUT_EOS = BYTES.ids(eos=True), BYTES.ids(eos=False)
LOGITS = np.random.default_rng(3).standard_normal(VOCAB).astype(np.float32)


def test_greedy_takes_the_largest_and_can_leave_eos_out() -> None:
    logits = np.zeros(VOCAB, np.float32)
    logits[EOS], logits[ord("x")], logits[300] = 9, 5, 99  # 300 is no id of the tokenizer
    assert greedy(logits, WITH_EOS) == EOS
    assert greedy(logits, WITHOUT_EOS) == ord("x")


def test_the_same_seed_gives_the_same_tokens_and_another_does_not() -> None:
    first, second, other = (
        [sampler.choose(LOGITS, WITH_EOS) for _ in range(50)]
        for sampler in (Sampler(1, 1, 7), Sampler(1, 1, 7), Sampler(1))
    )
    assert first == second
    assert first != other


def test_negative_seeds_are_seeds() -> None:
    assert Sampler(1.0, seed=-1).choose(LOGITS, WITH_EOS) == Sampler(1.0, seed=-1).choose(LOGITS, WITH_EOS)


def test_frequencies_follow_the_softmax() -> None:
    sampler, ids = Sampler(0.8, seed=1), list(GENERATED)
    drawn = np.bincount([sampler.choose(LOGITS, WITH_EOS) for _ in range(20_000)], minlength=VOCAB)
    expected = np.exp(LOGITS[ids].astype(float) / 0.8)
    expected /= expected.sum()
    assert drawn[ids].sum() == 20_000
    assert np.abs(drawn[ids] / 20_000 - expected).max() < 0.01


def test_top_p_keeps_the_fewest_most_likely_ids() -> None:
    logits = np.full(VOCAB, -30, np.float32)
    logits[[65, 66, 67]] = np.log([0.5, 0.3, 0.2])
    for top_p, kept in ((0.4, {65}), (0.79, {65, 66}), (0.95, {65, 66, 67})):
        sampler = Sampler(1.0, top_p, seed=2)
        assert {sampler.choose(logits, WITH_EOS) for _ in range(200)} == kept


@pytest.mark.parametrize("temperature", [5e-324, 1e-4, 2.0])
def test_extreme_temperatures_and_logits_stay_finite(temperature: float) -> None:
    logits = np.where(np.arange(VOCAB) == 65, 1e4, -1e4).astype(np.float32)
    assert Sampler(temperature, seed=1).choose(logits, WITHOUT_EOS) == 65


def test_top_k_and_min_p_keep_the_most_likely_ids() -> None:
    logits = np.full(VOCAB, -30, np.float32)
    logits[[65, 66, 67]] = np.log([0.5, 0.3, 0.2])
    narrow: dict[str, tuple[dict[str, float], set[int]]] = {
        "top_k": ({"top_k": 2}, {65, 66}),
        "min_p": ({"min_p": 0.5}, {65, 66}),
        "both": ({"top_k": 2, "min_p": 0.7}, {65}),
        "top_k before top_p": ({"top_k": 2, "top_p": 0.6}, {65}),
    }
    for options, kept in narrow.values():
        sampler = Sampler(1.0, seed=2, **options)  # type: ignore[arg-type]
        assert {sampler.choose(logits, WITH_EOS) for _ in range(200)} == kept


def test_answers_to_one_request_differ_and_the_first_is_as_alone() -> None:
    draws = [
        [sampler.choose(LOGITS, WITH_EOS) for _ in range(20)]
        for sampler in (
            Sampler(1.0, seed=7),
            Sampler(1.0, seed=7, choice=0),
            Sampler(1.0, seed=7, choice=1),
            Sampler(1.0, seed=7, choice=2),
        )
    ]
    assert draws[0] == draws[1]
    assert len({tuple(drawn) for drawn in draws}) == 3


def test_scores_are_the_models_log_probabilities_best_first() -> None:
    token, logprob, top = scores(LOGITS, 65, 4)
    exact = LOGITS.astype(float) - np.log(np.exp(LOGITS.astype(float)).sum())
    assert token == 65
    assert logprob == pytest.approx(exact[65])
    assert [i for i, _ in top] == np.argsort(-exact)[:4].tolist()
    assert [value for _, value in top] == pytest.approx(sorted(exact)[-1:-5:-1])
    assert scores(LOGITS, 65, 0).top == ()
