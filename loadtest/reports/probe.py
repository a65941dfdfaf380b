"""What a probe has found, as a person reads it at a terminal."""

from loadtest.portrait import Check, Portrait, Step
from loadtest.reports.console import Page
from loadtest.reports.figures import figure, plain

_BAR = 40
_BLANK = "\N{NO-BREAK SPACE}"
_WORKS = {True: "yes", False: "no", None: "–"}


def text(portrait: Portrait, width: int, color: bool) -> str:
    """``portrait`` in lines of at most ``width`` columns, but for what is to be pasted; ends in a newline."""
    where = portrait.url if portrait.address in portrait.url else f"{portrait.url} ({portrait.address})"
    name = max(len(check.name) for check in portrait.checks)
    page = Page(width, color)
    model = f" · model {portrait.model}" if portrait.model else ""
    page.paragraphs([plain(f"{where} · endpoint {portrait.endpoint} ({portrait.how}){model}")], style="bold")
    page.paragraphs([_check(check, name) for check in portrait.checks], hanging=name + 6)
    page.paragraphs([f"changed: {plain(change)}" for change in portrait.adaptations], style="yellow", hanging=2)
    lines = [page.text().replace(_BLANK, " ")]
    if portrait.waterfall:
        lines += [f"One request of {portrait.waterfall[-1].to_ms:.1f} ms:", *_bars(portrait.waterfall), ""]
    lines += ["The same by hand:", *(f"  {line}" for line in portrait.curl.split("\n")), ""]
    if portrait.raw is not None:
        lines += ["Sent:", *_raw(portrait.raw.sent), "", "Received:", *_raw(portrait.raw.received), ""]
    end = Page(width, color)
    if portrait.reason is None:
        lines += ["For a scenario:", *(f"  {line}" for line in portrait.section.splitlines()), ""]
        sent = "1 small request was" if portrait.requests == 1 else f"{portrait.requests} small requests were"
        end.paragraphs([f"It can be used. {sent} sent."], style="bold")
    else:
        end.paragraphs([plain(f"It cannot be used as it was called: {portrait.reason}")], style="bold red", hanging=2)
    return "\n".join([*lines, end.text()])


def _check(check: Check, width: int) -> str:
    # Blanks that no line is broken at, so that the columns stay.
    return f"{check.name:<{width}}  {_WORKS[check.works]:<3} ".replace(" ", _BLANK) + plain(check.evidence)


def _bars(steps: list[Step]) -> list[str]:
    whole = max(steps[-1].to_ms, 1e-6)
    name = max(len(step.name) for step in steps)
    lines = []
    for step in steps:
        start = min(round(step.from_ms / whole * _BAR), _BAR - 1)
        end = max(start + 1, round(step.to_ms / whole * _BAR))
        bar = " " * start + "█" * (end - start)
        lines.append(f"  {step.name:<{name}}  {bar:<{_BAR}}  {figure(step.to_ms - step.from_ms):>8} ms")
    return lines


def _raw(text: str) -> list[str]:
    """Lines of what was on the wire: what is no sign of a text is escaped, for it goes to a terminal."""
    lines = text.replace("\r\n", "\n").split("\n")
    return [
        "  " + "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in line) for line in lines
    ]
