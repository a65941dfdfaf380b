"""What a run would do, found without doing it: its scenario, its plan, and what is known to stand in its way."""

from loadtest import calibration, plan
from loadtest.endpoints.openai import PATHS
from loadtest.engine.local import check_budget, workers_for
from loadtest.errors import UsageError
from loadtest.forecast import Forecast, Prices, Source, forecast
from loadtest.material import material
from loadtest.run import resolve, unused
from loadtest.scenario.document import parse
from loadtest.scenario.model import Override
from loadtest.wire import origin
from loadtest.workload.tokens import Tokens, measure


def preview(
    url: str | None, source: str | None, overrides: dict[str, Override], workers: int | None, prices: Prices | None
) -> tuple[Forecast, str]:
    """The forecast of what ``run`` would play with the same arguments, and the resolved scenario as YAML.

    Raises:
        UsageError: the scenario is wrong.
    """
    resolved = resolve(source, overrides)
    asked = resolved.scenario
    assert asked.seed is not None
    counts = measure(Tokens("words"), None)
    with material(asked, bundled=url is None) as rows:
        levels = plan.levels(asked, bundled=url is None, rows=rows)
        needed = workers or workers_for(levels)
        warnings = [f"not comparable: {reason}" for reason in resolved.not_comparable]
        warnings += [] if url is None else unused(asked, overrides)
        try:
            check_budget(levels, needed)
        except UsageError as error:
            warnings.append(f"run would refuse this: {error}")
        warnings += calibration.warning(levels, needed)
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
            target=None if url is None else origin.parse(url, tuple(PATHS.values())).url,
            workers=needed,
            cooldown_s=asked.cooldown_s,
            prices=prices,
            warnings=warnings,
            count=lambda text: counts.counts([text], alone=True)[0],
        )
    return found, resolved.text
