"""The page of a run as a browser shows it: Debian's chromium, without a network, wide and narrow, light and dark."""

import json
import re
import shutil
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from loadtest import page as files
from loadtest.exports import csv
from loadtest.result import Result, write
from tests.conftest import Command
from tests.reports.pages import a_matrix, a_page_of, closed

CHROMIUM = shutil.which("chromium")
pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium here: apt-get install chromium"),
]
OF_A_RUN = {
    "latency-throughput", "percentiles", "prompt-length", "timeline-arrivals", "timeline-in-flight", "timeline-times",
    "timeline-failures", "slowest",
}  # fmt: skip
# What each text has for contrast with what is behind it, the least first.
CONTRASTS = """() => {
  const parts = (color) => color.match(/[\\d.]+/g).map(Number);
  const luminance = ([r, g, b]) => [r, g, b].map((part) => part / 255)
    .map((part) => part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4)
    .reduce((sum, part, at) => sum + part * [0.2126, 0.7152, 0.0722][at], 0);
  const ground = (element) => {
    for (let one = element; one; one = one.parentElement) {
      const found = parts(getComputedStyle(one).backgroundColor);
      if (found.length < 4 || found[3] > 0) return found;
    }
    return [255, 255, 255];
  };
  const found = [];
  const texts = "h1,h2,h3,p,li,a,td,th,dt,dd,caption,figcaption,summary,button,select,svg text";
  for (const element of document.querySelectorAll(texts)) {
    if (!element.textContent.trim() || !element.getClientRects().length) continue;
    const style = getComputedStyle(element);
    const ink = element.tagName === "text" ? style.fill : style.color;
    const [high, low] = [luminance(parts(ink)), luminance(ground(element))].sort((a, b) => b - a);
    found.push([(high + 0.05) / (low + 0.05), element.tagName, element.textContent.slice(0, 40)]);
  }
  return found.sort((a, b) => a[0] - b[0]);
}"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        # Nothing is opened but our own page; as root there is no sandbox.
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Runs with their pages: one of many charts, a matrix, and two over each other."""
    root = tmp_path_factory.mktemp("pages")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(root / "cache"))
        for name, given in (("run", {}), ("other", {"seed": 2})):
            result, written = a_page_of(*closed(2, 4, 8, 16), count=300, **given)
            (root / name).mkdir()
            write(result, root / name)
            (root / name / "records.jsonl").write_bytes(b"".join(written))
            files.write(files.read([root / name]))
        files.write(files.read([root / "run", root / "other"]), root / "both" / "report.html")
        yield root


Opened = Callable[..., Page]


@pytest.fixture
def opened(browser: Browser, folder: Path) -> Iterator[Opened]:
    """Opens a page without a network; at the end it has asked for nothing, and its console is empty."""
    said: list[str] = []
    asked: list[str] = []
    contexts = []

    def go(name: str = "run", width: int = 1280, scheme: str = "light", path: Path | None = None) -> Page:
        context = browser.new_context(
            viewport={"width": width, "height": 900}, color_scheme=scheme, offline=True, accept_downloads=True
        )
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("request", lambda request: asked.append(request.url))
        page.goto((path or folder / name / "report.html").as_uri())
        page.evaluate("window.loadtestReady")
        return page

    yield go
    for context in contexts:
        context.close()
    assert said == []
    assert [url for url in asked if not url.startswith(("file:", "blob:"))] == []


def marks(page: Page) -> dict[str, int]:
    """How many marks each chart draws."""
    return page.evaluate("""() => {
      const kinds = ["line", "area", "symbol", "rect"].map((kind) => `.mark-${kind}.role-mark path`).join(",");
      const figures = [...document.querySelectorAll("figure")];
      return Object.fromEntries(figures.map((one) => [one.dataset.chart, one.querySelectorAll(kinds).length]));
    }""")


def test_every_chart_of_a_run_is_drawn(opened: Opened) -> None:
    page = opened()
    found = marks(page)
    assert {*found} == OF_A_RUN
    assert all(found.values()), found


def test_runs_over_each_other_are_drawn(opened: Opened) -> None:
    found = marks(opened("both"))
    assert {*found} == {"latency-throughput", "percentiles"}
    assert all(found.values()), found


def test_a_matrix_is_drawn(opened: Opened, tmp_path: Path) -> None:
    write(a_matrix(), tmp_path)
    page = opened(path=files.write(files.read([tmp_path])))
    found = marks(page)
    assert (found["matrix-throughput"], found["matrix-latency"]) == (4, 4)
    texts = page.locator("[data-chart=matrix-throughput] .mark-text text").all_text_contents()
    assert len([text for text in texts if re.fullmatch(r"[\d,.]+", text)]) == 4


@pytest.mark.parametrize("name", sorted(OF_A_RUN))
def test_a_mark_under_the_pointer_shows_its_value(opened: Opened, name: str) -> None:
    page = opened()
    figure = page.locator(f"[data-chart={name}]")
    figure.scroll_into_view_if_needed()
    found = figure.locator(".mark-symbol path" if name not in ("timeline-failures", "slowest") else ".mark-rect path")
    for at in range(0, found.count(), max(1, found.count() // 10)):
        box = found.nth(at).bounding_box()
        assert box is not None
        page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
        tip = page.locator("#vg-tooltip-element.visible")
        if tip.count():
            assert re.search(r"\d", tip.inner_text())
            return
    raise AssertionError(f"no mark of {name} has a tooltip")


@pytest.mark.parametrize("name", ["run", "both"])
@pytest.mark.parametrize("width", [1280, 400])
def test_nothing_is_wider_than_the_screen(opened: Opened, name: str, width: int) -> None:
    page = opened(name, width)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    wider = """(width) => [...document.querySelectorAll("body *")].filter((one) => !one.closest(".wide, .skip"))
      .filter((one) => one.getClientRects().length && one.getBoundingClientRect().right > width + 1)
      .map((one) => one.outerHTML.slice(0, 90))"""
    assert page.evaluate(wider, width) == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_text_is_readable(opened: Opened, scheme: str) -> None:
    page = opened(scheme=scheme)
    page.locator("[data-chart=percentiles] summary").click()
    page.wait_for_selector("[data-chart=percentiles] tbody tr")
    found: list[Any] = page.evaluate(CONTRASTS)
    assert len(found) > 200
    assert found[0][0] >= 4.5, found[:5]


def test_the_button_turns_dark_into_light_and_back(opened: Opened) -> None:
    page = opened(scheme="dark")
    ground = "getComputedStyle(document.body).backgroundColor"
    assert page.evaluate(ground) == "rgb(21, 24, 29)"
    button = page.get_by_role("button", name="Dark")
    assert button.get_attribute("aria-pressed") == "true"
    button.click()
    assert (page.evaluate(ground), button.get_attribute("aria-pressed")) == ("rgb(255, 255, 255)", "false")
    assert page.evaluate(CONTRASTS)[0][0] >= 4.5


def test_on_paper_it_is_black_on_white_without_what_is_to_be_clicked(opened: Opened) -> None:
    page = opened(scheme="dark")
    page.emulate_media(media="print", color_scheme="dark")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert not page.locator("nav").is_visible()
    assert not page.locator("#theme").is_visible()


def test_all_of_it_is_reached_by_the_keyboard(opened: Opened) -> None:
    page = opened()
    reached = []
    here = """() => {
      const one = document.activeElement;
      return one.id || one.getAttribute("href") || one.textContent.trim();
    }"""
    for _ in range(80):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement === document.body"):
            break
        reached.append(page.evaluate(here))
        assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") != "none", reached[-1]
    assert reached[:2] == ["#main", "theme"]
    summaries = page.locator("main figure summary").all_text_contents()
    assert {"level", "save-result", "save-levels", "#charts", *summaries} <= {*reached}
    page.locator("[data-chart=slowest] summary").focus()
    page.keyboard.press("Enter")
    page.wait_for_selector("[data-chart=slowest] tbody tr")
    assert page.locator("[data-chart=slowest] tbody tr").count() > 20


def test_a_reader_that_sees_nothing_is_told_what_is_drawn(opened: Opened) -> None:
    page = opened()
    assert page.get_by_role("main").count() == 1
    assert page.get_by_role("navigation").count() == 1
    assert page.locator("h1").count() == 1
    levels = [
        int(tag[1]) for tag in page.evaluate("[...document.querySelectorAll('h1,h2,h3')].map((one) => one.tagName)")
    ]
    assert all(after <= before + 1 for before, after in pairwise(levels))
    labels = [drawing.get_attribute("aria-label") or "" for drawing in page.locator("figure > [role=img]").all()]
    assert len(labels) == len(OF_A_RUN)
    assert all(len(label) > 60 for label in labels)
    assert page.locator("table caption").count() >= 2


def test_another_level_can_be_drawn(opened: Opened) -> None:
    page = opened()
    picker = page.get_by_label("Level drawn below")
    assert picker.input_value() == "c=16"
    before = page.locator("[data-chart=slowest] svg").inner_html()
    details = page.locator("[data-chart=slowest] details")
    details.locator("summary").click()
    page.wait_for_selector("[data-chart=slowest] tbody tr")
    picker.select_option("c=2")
    page.wait_for_function("document.querySelector('[data-chart=slowest] h3').textContent.endsWith(': c=2')")
    page.wait_for_function(
        "(before) => document.querySelector('[data-chart=slowest] svg').innerHTML !== before", arg=before
    )
    assert {*details.locator("tbody td:first-child").all_text_contents()} == {"c=2"}
    failures = page.locator("[data-chart=timeline-failures]")  # none failed there
    assert failures.locator(".nothing").is_visible()
    assert not failures.locator(".drawn").is_visible()


def test_the_same_second_is_at_the_same_place_in_every_panel_of_the_timeline(opened: Opened) -> None:
    page = opened()
    ends = page.evaluate("""() => [...document.querySelectorAll("figure[data-chart^=timeline]")].map((one) => {
      const drawn = one.querySelector("svg .background").getBoundingClientRect();
      return [Math.round(drawn.left), Math.round(drawn.right)];
    })""")
    assert len(ends) == 4
    assert len({tuple(each) for each in ends}) == 1, ends


def test_a_load_that_was_played_several_times_is_one_point_of_its_line(opened: Opened, tmp_path: Path) -> None:
    result, written = a_page_of(*closed(2, 4, 4, 8))
    late = msgspec.structs.replace(
        result.levels[3], client=msgspec.structs.replace(result.levels[3].client, valid=False, reasons=["late"])
    )
    write(msgspec.structs.replace(result, levels=[*result.levels[:3], late]), tmp_path)
    (tmp_path / "records.jsonl").write_bytes(b"".join(written))
    page = opened(path=files.write(files.read([tmp_path])))
    line = page.locator("#chart-latency-throughput .mark-line path[stroke-dasharray='']").or_(
        page.locator("#chart-latency-throughput .mark-line path:not([stroke-dasharray])")
    )
    drawn = [path for path in line.evaluate_all("paths => paths.map((one) => one.getAttribute('d'))") if path]
    assert [len(re.findall("[ML]", path)) for path in drawn] == [2], "c=2 and the middle of c=4; c=8 is no point"


def test_the_data_can_be_saved(opened: Opened, folder: Path) -> None:
    page = opened()
    with page.expect_download() as saving:
        page.get_by_role("button", name="result.json").click()
    result = json.loads((folder / "run" / "result.json").read_bytes())
    assert json.loads(Path(saving.value.path()).read_bytes()) == result
    with page.expect_download() as saving:
        page.get_by_role("button", name="levels.csv").click()
    assert saving.value.suggested_filename == "levels.csv"
    assert Path(saving.value.path()).read_bytes().decode() == csv.text(msgspec.convert(result, Result))


def test_a_run_leaves_its_page(opened: Opened, loadtest: Command, tiny: str, tmp_path: Path) -> None:
    asked = ("-c", "1,4", "-n", "30", "--output-tokens", "8", "-o", "out", "-q")
    done = loadtest("run", tiny, *asked, LOADTEST_NO_HTML="0")
    assert done.returncode == 0, done.stderr
    found = marks(opened(path=tmp_path / "out" / "report.html"))
    assert {"latency-throughput", "percentiles", "timeline-times", "slowest"} <= {*found}
    assert all(found.values()), found
    done = loadtest("report", "out", "--html", "again.html", "--svg", "drawn")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "again.html").read_bytes() == (tmp_path / "out" / "report.html").read_bytes()
    assert {path.stem for path in (tmp_path / "drawn").iterdir()} == {*found}
    done = loadtest("report", "out", "out", "--json", "-")
    assert (done.returncode, "take several runs" in done.stderr) == (2, True)
