"""Prometheus text (exposition format 0.0.4): of all its series the few that are asked for. Pure."""

from collections.abc import Collection
from typing import NamedTuple


class Sample(NamedTuple):
    """One value of a series."""

    name: str
    labels: dict[str, str]
    value: float


def samples(text: str, names: Collection[str]) -> list[Sample]:
    """The samples of ``names`` in ``text``, in its order.

    Lines of other names are passed over unread: a server has some thousand of them, most of them buckets of histograms,
    and parsing all of them each second would cost more than the rest of a scrape.

    Raises:
        ValueError: it is no such text, or a line of ``names`` is damaged; the message says what is wrong.
    """
    if text.lstrip()[:1] in {"<", "{", "["}:
        raise ValueError(f"not metrics but {'a page of HTML' if text.lstrip()[0] == '<' else 'JSON'}")
    # With the server's own endpoint it is this library's; elsewhere nobody needs it before a run has begun.
    from prometheus_client.parser import text_string_to_metric_families  # noqa: PLC0415

    lines = [line for line in text.splitlines() if _name(line) in names]
    try:
        return [
            Sample(sample.name, sample.labels, float(sample.value))
            for family in text_string_to_metric_families("\n".join(lines) + "\n")
            for sample in family.samples
        ]
    except (ValueError, IndexError, KeyError) as error:  # the library's ways of refusing a line
        raise ValueError(f"damaged metrics: {error}") from None


def _name(line: str) -> str:
    return line.partition("{")[0].partition(" ")[0]
