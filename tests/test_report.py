"""The page of a comparison, as text and in a real browser."""

import json
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch

from browser import chromium, look, missing
from ld3.comparison import Comparison
from ld3.report import page, write_report
from ld3.runs.compare.images import BYTES, _shrink
from ld3.runs.compare.run import run_compare
from ld3.runs.compare.spec import CompareSpec
from ld3.searches.registry import SEARCHES
from learners import QUICK, Fails
from test_compare import pictures, toy

HOSTILE = "x:</script><script>alert(1)</script><img src=//e.vil onerror=alert(2)>$css"

needs_browser = pytest.mark.skipif(bool(missing()), reason=missing() or "there is one")


def compared(out: Path, **words: object) -> Comparison:
    small = {"pairs": 16, "valid": 8, "held_out": 24, "nfe": "3,5", "teacher_steps": 16}
    model = words.pop("own", None) or pictures()
    with mock.patch.dict(SEARCHES, {"lost": Fails()}, clear=True):
        names = "edm,logsnr,cosine,ld3,lost"
        spec = CompareSpec.read({**small, **QUICK, "methods": names, "out": out, **words})
        return run_compare(spec, model=model)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def comparison(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    out = tmp_path_factory.mktemp("compare")
    return compared(out, solvers="dpmpp,ipndm:3", seeds=2, model=HOSTILE)


class Reader(HTMLParser):
    """Tags, addresses, and what is inside of style and script."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.addresses: list[str] = []
        self.code: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.addresses += [v or "" for k, v in attrs if k in ("src", "href", "action", "data")]
        assert not any(name.startswith("on") for name, _ in attrs)

    def handle_data(self, data: str) -> None:
        if self.tags and self.tags[-1] in ("style", "script"):
            self.code.append(data)


def test_it_is_one_small_file_that_loads_nothing(comparison: Comparison) -> None:
    text = page(comparison)
    assert len(text.encode()) < 5_000_000
    read = Reader(text)
    assert read.addresses == ["#main"]
    assert not {"link", "iframe", "object", "embed", "base"} & set(read.tags)
    code = "".join(read.code).replace("http://www.w3.org/2000/svg", "")  # a name, not an address
    assert not re.search(r"@import|url\(|fetch\(|XMLHttp|import\(|innerHTML|eval\(|//\w+\.", code)
    assert "default-src 'none'" in text


def test_text_from_outside_is_only_text(comparison: Comparison) -> None:
    assert comparison.model["name"] == HOSTILE
    text = page(comparison)
    assert text.count("<script") == 2 and text.count("</script>") == 2
    assert "<img" not in text and "<b>, expected" not in text
    assert "&lt;script&gt;alert(1)" in text and "$css" in text


def test_large_pictures_are_made_smaller() -> None:
    """So that many of them fit on a page."""
    shrink = _shrink(torch.Size([3, 512, 512]), 400)
    small = shrink(torch.zeros(1, 3, 512, 512))
    assert small.shape[2] == small.shape[3] and 400 * small[0].numel() <= BYTES


def test_without_pictures_or_learners(tmp_path: Path) -> None:
    found = compared(tmp_path, methods="edm,logsnr", own=toy())
    assert found.pictures is None
    text = page(found)
    for section in ("pictures-title", "overview-title", "learning-title"):
        assert re.search(rf'aria-labelledby="{section}" hidden>', text)
    assert "There is no learned method to compare with." in text


@pytest.fixture(scope="module")
def driver(comparison: Comparison, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    if missing():
        pytest.skip(missing())
    file = write_report(comparison, tmp_path_factory.mktemp("page"))
    with chromium() as browser:
        look(browser, 1200, 900)
        browser.get(file.as_uri())
        yield browser


def js(driver: Any, code: str) -> Any:
    return driver.execute_script(f"return {code}")


@needs_browser
def test_the_slider_moves_by_keys_and_by_hand(driver: Any) -> None:
    from selenium.webdriver import ActionChains, Keys

    slider = driver.find_element("id", "slider")
    clip = "getComputedStyle(document.querySelector('#both .view img + img')).clipPath"
    before = js(driver, clip)
    assert "50%" in before
    slider.send_keys(Keys.ARROW_RIGHT * 3)
    assert "53%" in js(driver, clip)
    assert slider.get_attribute("aria-valuetext").startswith("left 53 % ")
    slider.send_keys(Keys.HOME)
    assert js(driver, clip) != before and "%" not in js(driver, clip).replace("0%", "")
    view = driver.find_element("css selector", "#both .view")
    chain = ActionChains(driver).move_to_element_with_offset(view, -20, 0).click_and_hold()
    chain.move_by_offset(40, 0).release().perform()
    assert int(slider.get_attribute("value")) > 50


@needs_browser
def test_choices_switch_pictures_charts_and_rows(driver: Any, comparison: Comparison) -> None:
    def seen() -> tuple[Any, ...]:
        return (
            js(driver, "document.querySelector('#both img').src"),
            js(driver, "document.querySelector('#grids svg').getAttribute('aria-label')"),
            js(driver, "document.querySelector('#cost svg').getAttribute('aria-label')"),
            js(driver, "document.querySelector('#learning svg').getAttribute('aria-label')"),
        )

    def choose(name: str, value: str) -> None:
        box = driver.find_element("css selector", f"input[name={name}][value='{value}']")
        driver.execute_script("arguments[0].click()", box)

    visible = "[...document.querySelectorAll('#all tbody tr')].filter(r => !r.hidden)"
    first = seen()
    choose("nfe", "5")
    second = seen()
    assert all(a != b for a, b in zip(first, second, strict=True))
    assert set(js(driver, f"{visible}.map(r => r.dataset.nfe)")) == {"5"}
    choose("solver", "ipndm-3")
    assert all(a != b for a, b in zip(second, seen(), strict=True))
    names = js(driver, "[...document.querySelectorAll('#worst h4')].map(h => h.textContent)")
    assert names[0] == "Where ld3 is farthest from the teacher" and len(names) == 3
    block = next(b for b in comparison.blocks if (b.solver, b.nfe) == ("ipndm-3", 5))
    assert js(driver, f"{visible}.length") == len(block.rows)
    driver.find_element("id", "only").click()
    assert js(driver, f"{visible}.length") == sum(len(b.rows) for b in comparison.blocks)
    driver.find_element("id", "only").click()
    choose("solver", "dpmpp-3")
    choose("nfe", "3")
    assert seen() == first


@needs_browser
def test_sorting_sorts_both_ways_by_mouse_and_keys(driver: Any, comparison: Comparison) -> None:
    from selenium.webdriver import Keys

    heads = driver.find_elements("css selector", "#all thead th")
    titles = [head.text.split("\n")[0] for head in heads]
    shown = "[...document.querySelectorAll('#all tbody tr')].filter(r => !r.hidden)"

    def column(number: int) -> list[str]:
        cells = js(driver, f"{shown}.map(r => r.cells[{number}]?.dataset.v ?? '')")
        return [cell for cell in cells if cell]

    seconds = next(i for i, head in enumerate(heads) if "Seconds" in head.text)
    heads[seconds].find_element("css selector", "button").click()
    assert heads[seconds].get_attribute("aria-sort") == "ascending"
    values = [float(v) for v in column(seconds)]
    assert values == sorted(values) and len(values) == 4
    heads[seconds].find_element("css selector", "button").send_keys(Keys.ENTER)
    assert heads[seconds].get_attribute("aria-sort") == "descending"
    assert [float(v) for v in column(seconds)] == sorted(values, reverse=True)
    heads[0].find_element("css selector", "button").send_keys(Keys.SPACE)
    assert heads[seconds].get_attribute("aria-sort") == "none"
    assert column(0) == sorted(column(0)), titles
    assert "Sorted by Method" in driver.find_element("id", "sorted").get_attribute("textContent")
    failed = js(driver, f"{shown}.filter(r => r.textContent.includes('failed: search')).length")
    assert failed == 1


@needs_browser
def test_intervals_and_names_are_drawn(driver: Any, comparison: Comparison) -> None:
    charts = js(driver, "document.querySelectorAll('[data-metric] svg').length")
    assert charts == len(comparison.metrics)
    for metric in comparison.metrics:
        inside = f"document.querySelector('[data-metric={metric.key}] svg')"
        said = js(driver, f"{inside}.getAttribute('aria-label')")
        value = next(r for r in comparison.blocks[0].rows if r.method == "ld3").scores[metric.key]
        assert f"3 evaluations {float(f'{value.value:.3g}'):g}" in said.replace("e-0", "e-")
        drawn = f"[...{inside}.querySelectorAll('text')].map(t => t.textContent)"
        assert {"ld3", "3", "5", "evaluations"} <= set(js(driver, drawn))
    for code in ("svg", "img"):
        bad = f"[...document.querySelectorAll('{code}')].filter(e => e.innerHTML.includes('NaN'))"
        assert js(driver, f"{bad}.length") == 0


@needs_browser
def test_pictures_have_words_and_controls_have_names(driver: Any) -> None:
    assert js(driver, "[...document.images].every(i => i.alt && i.complete && i.naturalWidth > 0)")
    assert js(
        driver, "[...document.querySelectorAll('svg')].every(s => s.getAttribute('aria-label'))"
    )
    named = "i.labels.length || i.getAttribute('aria-label')"
    assert js(driver, f"[...document.querySelectorAll('input')].every(i => {named})")
    assert js(driver, "[...document.querySelectorAll('table')].every(t => t.caption)")
    assert js(driver, "document.documentElement.lang") == "en"


@needs_browser
def test_it_fits_a_phone(driver: Any) -> None:
    for width in (390, 320):
        look(driver, width, 844)
        driver.refresh()
        wide = js(
            driver, "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        )
        assert wide <= 0
    look(driver, 1200, 900)
    driver.refresh()


@needs_browser
def test_it_is_dark_in_the_dark_and_can_be_read(driver: Any) -> None:
    def colours() -> tuple[float, float]:
        style = "getComputedStyle(document.body)"
        code = f"[{style}.backgroundColor, {style}.color]"
        ground, text = (
            sum(float(v) for v in re.findall(r"[\d.]+", c)[:3]) / 765 for c in js(driver, code)
        )
        return ground, text

    ground, text = colours()
    assert ground > 0.9 and text < 0.25
    look(driver, 1200, 900, dark=True)
    ground, text = colours()
    assert ground < 0.15 and text > 0.8
    look(driver, 1200, 900)


@needs_browser
def test_no_errors_and_nothing_hostile_ran(driver: Any, tmp_path: Path) -> None:
    """Last: the log has everything the tests before did."""
    assert driver.get_log("browser") == []
    assert js(driver, "document.querySelector('h1').textContent") == HOSTILE
    assert js(driver, "document.querySelectorAll('h1 *').length") == 0
    loaded = "performance.getEntriesByType('resource').map(r => r.name)"
    assert [name for name in js(driver, loaded) if not name.startswith("data:")] == []


@needs_browser
def test_a_model_without_pictures_in_the_browser(tmp_path: Path) -> None:
    found = compared(tmp_path, own=toy(), nfe="4", methods="edm,ld3")
    with chromium() as browser:
        look(browser, 1200, 900)
        browser.get(write_report(found, tmp_path).as_uri())
        assert not browser.find_element("id", "pictures").is_displayed()
        assert browser.find_element("css selector", "#grids svg").is_displayed()
        assert browser.get_log("browser") == []
        assert json.loads(
            browser.execute_script("return document.getElementById('data').textContent")
        )


@needs_browser
def test_a_noisy_search_is_drawn_with_its_mean(comparison: Comparison, tmp_path: Path) -> None:
    """Losses of batches hide the descent; a short curve is drawn as it is."""
    noisy = [(3.0 if i % 2 else 1.0) * 0.99**i for i in range(80)]
    blocks = [
        block.model_copy(
            update={
                "rows": [
                    row.model_copy(update={"curve": noisy if row.method == "ld3" else [2.0, 1.0]})
                    for row in block.rows
                ]
            }
        )
        for block in comparison.blocks
    ]
    file = write_report(comparison.model_copy(update={"blocks": blocks}), tmp_path)
    with chromium() as browser:
        look(browser, 1200, 900)
        browser.get(file.as_uri())
        paths = "[...figure.querySelectorAll('path')].map(path => path.getBBox().height)"
        figures = "[...document.querySelectorAll('#learning figure')]"
        heights = js(browser, f"{figures}.map(figure => {paths})")
        assert max(map(len, heights)) == 2
        (drawn,) = (found for found in heights if len(found) == 2)
        assert 0 < drawn[1] < 0.6 * drawn[0]
        assert all(len(found) == 1 for found in heights if found is not drawn)
        assert browser.get_log("browser") == []
