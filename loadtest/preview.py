"""What a run would do, found without doing it: its scenario, its plan, and what is known to stand in its way."""

from collections.abc import Callable, Iterator, Sequence

from loadtest import calibration, consent, plan, scenario
from loadtest.approach import told_by_url
from loadtest.bundled import server_options, unused
from loadtest.endpoints.site import site
from loadtest.engine.local import check_budget, workers_for
from loadtest.errors import UsageError
from loadtest.forecast import Forecast, Prices, Source, forecast
from loadtest.level import Level
from loadtest.material import counter, material
from loadtest.scenario.document import parse
from loadtest.scenario.model import Override, Scenario
from loadtest.slo import parse as parse_slo
from loadtest.verdict import objectives


def preview(
    url: str | None, source: str | None, overrides: dict[str, Override], workers: int | None, prices: Prices | None
) -> tuple[Forecast, str]:
    """The forecast of what ``run`` would play with the same arguments, and the resolved scenario as YAML.

    Raises:
        UsageError: the scenario is wrong.
    """
    overrides = told_by_url(url, source, overrides)
    resolved = scenario.seeded(source, overrides)
    asked, bundled = resolved.scenario, url is None
    assert asked.seed is not None
    with material(asked, bundled=bundled) as rows:
        levels = plan.levels(asked, bundled=bundled, rows=rows)
        needed = workers or workers_for(levels)
        warnings = [
            *_refusals(asked, levels, needed, bundled),
            *(f"not comparable: {reason}" for reason in resolved.not_comparable),
            *unused(asked, overrides, bundled=bundled),
            *calibration.warning(levels, needed),
            *_questions(url, asked, levels),
            *_beside(asked),
        ]
        found = forecast(
            Source(
                name=asked.name,
                question=asked.question,
                sha256=resolved.sha256,
                values=parse(resolved.text, asked.name).data,
                sources=resolved.sources,
            ),
            levels,
            asked.seed,
            target=None if url is None else site(url, asked.endpoint).origin.url,
            workers=needed,
            cooldown_s=asked.cooldown_s,
            prices=prices,
            warnings=warnings,
            count=counter(asked, bundled=bundled),
            slos=[parse_slo(text) for text in asked.slo],
        )
    return found, resolved.text


def _questions(url: str | None, asked: Scenario, levels: Sequence[Level]) -> Iterator[str]:
    """What ``run`` would ask before it sends anything, unless the name is this machine's after all."""
    if url is None:
        return
    origin = site(url, asked.endpoint).origin
    if (found := consent.question(origin, levels, asked.max_rate_per_s, asked.max_in_flight)) is not None:
        yield f"run would ask first, or want --yes: {found}"


def _beside(asked: Scenario) -> Iterator[str]:
    """What is sent besides the levels and is in no estimate of them."""
    if asked.audit is not None:
        yield f"the audit sends {2 * asked.audit.pairs} requests before the first level, which are not in this estimate"


def _refusals(asked: Scenario, levels: Sequence[Level], workers: int, bundled: bool) -> Iterator[str]:
    """Why ``run`` would not begin, as far as that is known before the target is reached."""
    checks: list[Callable[[], object]] = [
        lambda: objectives(asked, levels),
        lambda: check_budget(levels, workers),
    ]
    if bundled:
        checks.append(lambda: server_options(asked, levels))
    for check in checks:
        try:
            check()
        except UsageError as error:
            yield f"run would refuse this: {error}"
