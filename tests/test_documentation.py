"""What the documentation links to is there, and its site needs neither server nor network."""

from __future__ import annotations

import functools
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted(page for house in ("docs", "lab") for page in (ROOT / house).rglob("*.md"))]
RESULTS = ROOT / "lab/results/pages"  # they say what was typed then
CURRENT = [page for page in PAGES if RESULTS not in page.parents]


@functools.cache
def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub and the site make them."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    found = set()
    for heading in re.findall(r"^#+ (.+)$", text, re.MULTILINE):
        plain = re.sub(r"[^\w\- ]", "", heading.lower())
        found |= {plain.replace(" ", "-"), re.sub(r"[-\s]+", "-", plain).strip("-")}
    return found


def dead(page: Path) -> Iterator[str]:
    """What a page links to that is not there."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        path, _, anchor = target.partition("#")
        other = (page.parent / path).resolve() if path else page
        if re.match(r"[a-z]+:", target):
            continue
        if not other.exists() or (anchor and other.suffix == ".md" and anchor not in anchors(other)):
            yield f"{page.relative_to(ROOT)}: {target}"


def test_links_lead_somewhere() -> None:
    assert not [one for page in PAGES for one in dead(page)]


def test_every_page_is_in_the_site() -> None:
    listed = set(re.findall(r": ([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE))
    pages = {str(page.relative_to(ROOT)).removeprefix("docs/") for page in CURRENT if page != ROOT / "README.md"}
    assert pages == listed


def test_walks_through_the_code_are_short() -> None:
    counted = subprocess.run([sys.executable, ROOT / "scripts/walks.py"], capture_output=True, text=True)
    assert counted.returncode == 0, counted.stdout + counted.stderr


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_site_is_searched_without_server_and_network() -> None:
    from tests.report.web.chromium import Chromium, missing

    program = Path(sys.executable).with_name("zensical")
    if not program.exists() or missing():
        pytest.skip(missing() or "no Zensical here: make docs")
    subprocess.run([sys.executable, ROOT / "scripts/site.py"], check=True)
    built = subprocess.run([program, "build", "--strict"], cwd=ROOT, capture_output=True, text=True, timeout=200)
    assert not built.returncode and "No issues found" in built.stdout + built.stderr, built.stdout + built.stderr
    with Chromium() as browser:
        browser.open(ROOT / "site/tutorials/first-run.html")
        browser.until("return document.querySelector('.md-search__button')")
        browser.run("document.querySelector('.md-search__button').click(); return 1")
        browser.until(
            "const inside = (e) => [e, ...(e.shadowRoot ? all(e.shadowRoot) : [])];"
            "const all = (root) => [...root.querySelectorAll('*')].flatMap(inside);"
            "window.everything = all(document);"
            "const field = everything.find((e) => e.ariaLabel === 'Search' && e.tagName === 'INPUT');"
            "if (!field) return false;"
            "if (field.value !== 'deadzone') {"
            "  field.value = 'deadzone'; field.dispatchEvent(new Event('input', {bubbles: true, composed: true})); }"
            "return everything.some((e) => /^\\d+ results$/.test(e.textContent));"
        )
        assert not browser.console()
        assert all(url.startswith("file:") for url in browser.requests())
