"""The report's page: whole, offline, escaped, and sortable in a browser."""

import re
import shutil
import subprocess
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from bench_report.profiles import a_profile
from bench_report.records import a_case, a_system, same_system_runs

from mononn_bench.analysis.table import make_table
from mononn_bench.profiled import CaseProfile, Operator, ProfileRecord
from mononn_bench.record import write_record
from mononn_bench.report.names import report_files
from mononn_bench.report.page import page_html
from mononn_bench.report.write import write_report

TRIO = {"mononn": 1e-3, "onnxruntime": 2e-3, "openvino": 1.5e-3}
VOID = {"meta", "br", "link", "img", "hr", "input", "path", "use", "rect"}
BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), "")


class Page(HTMLParser):
    """Tags, texts and rows of a page; a tag that does not close is an error."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.open, self.ids, self.links, self.sources, self.texts, self.tables = [], [], [], [], [], {}
        self._table = None
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        if tag not in VOID:
            self.handle_endtag(tag)

    def handle_starttag(self, tag, attributes):
        values = dict(attributes)
        if tag not in VOID:
            self.open.append(tag)
        if "svg" not in self.open:
            self.ids += [values["id"]] if "id" in values else []
        self.links += [values["href"]] if tag == "a" and values.get("href") else []
        self.sources += [values[name] for name in ("src", "data") if values.get(name)]
        self.sources += [values["href"]] if tag == "link" else []
        if tag == "table":
            self._table = self.tables.setdefault(values.get("id", f"table {len(self.tables)}"), [])
        elif tag == "tr" and self._table is not None:
            self._table.append([])
        elif tag in ("td", "th"):
            self._table[-1].append("")

    def handle_endtag(self, tag):
        if tag in VOID:
            return
        assert self.open and self.open.pop() == tag, tag
        if tag == "table":
            self._table = None

    def handle_data(self, data):
        self.texts.append(data)
        if self._table and self._table[-1] and self.open[-1] not in ("tr", "tbody", "thead"):
            self._table[-1][-1] = f"{self._table[-1][-1]} {data.strip()}".strip()


def page_of(records, pictures=None):
    return page_html(make_table(records), records, pictures or {})


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The folder of a whole report."""
    from bench_report.records import a_whole_run

    folder = tmp_path_factory.mktemp("report")
    paths = []
    for record in a_whole_run():
        paths.append(folder / "raw" / f"{record.model.name}.json")
        write_record(record, paths[-1])
    write_report(paths, folder)
    return folder


def test_every_announced_file_is_there(whole):
    announced = report_files(["bert-base", "resnet50", "vit-base", "t5-small"], list(TRIO))
    assert [name for name in announced if not (whole / name).is_file()] == []


def test_the_page_is_well_formed_and_needs_no_network(whole):
    text = (whole / "report.html").read_text()
    page = Page(text)
    assert page.sources == []
    assert not re.search(r"@import|url\(\s*['\"]?(?!#)", text)
    assert not re.search(r"(?:src|href)\s*=\s*['\"](?:https?:)?//", text)
    inside = {link[1:] for link in page.links if link.startswith("#")}
    assert inside <= set(page.ids)
    assert len(page.ids) == len(set(page.ids))
    files = [link for link in page.links if not link.startswith("#")]
    assert files and all((whole / link).is_file() for link in files)
    assert text.count("<svg") == 5


def test_every_cell_failure_and_command_is_on_the_page(whole, whole_run):
    page = Page((whole / "report.html").read_text())
    rows = page.tables["table-cells"]
    assert len(rows) == 1 + 4 * 8
    table = make_table(whole_run)
    for cell, row in zip(table.cells, rows[1:], strict=True):
        assert row[:3] == [cell.case, cell.system, cell.status]
    text = " ".join(page.texts)
    for cell in table.cells:
        assert cell.reason in text
    for record in whole_run:
        assert record.command in page.texts
        assert record.source_revision in text
    assert "7200" in text  # what tuning spent
    assert "240 GFLOP/s" in text and "Some CPU, x86_64" in text
    ratios = page.tables["table-speed"]
    assert ratios[1][2].startswith(f"{table.cell('bert-base', 'onnxruntime').speedup:.2f} [")


def test_blind_spots_stand_under_every_table_of_speeds(whole):
    text = (whole / "report.html").read_text()
    assert text.count("A system against itself: 0 of 4 comparisons differed") >= 2 + 4
    assert "95 % interval 0.0 to 60.2 %" in text


def test_flags_of_the_sentinel_are_shown():
    record = a_case("mlp", TRIO)
    first = replace(record.rounds[0], flags=("the sentinel drifted by 9%",), drift=0.09)
    page = Page(page_of([replace(record, rounds=(first, *record.rounds[1:]))]))
    assert any("round 1: the sentinel drifted by 9%" in text for text in page.texts)
    assert "9.0%" in page.texts


def test_what_records_say_cannot_become_markup():
    evil = '<script>alert("x")</script>'
    record = a_case(evil, TRIO, {"openvino": a_system("openvino", "failed", evil)})
    record = replace(
        record, command=evil, source_revision=evil, run_id=evil, machine=replace(record.machine, name=evil, cpu=evil)
    )
    text = page_of([record])
    assert "alert(" in text and evil not in text
    assert text.count("<script>") == 1
    quoted = a_case('" onmouseover="alert(1)', TRIO)
    assert '" onmouseover=' not in page_of([quoted])


def test_profiles_that_stand_are_shown_and_linked():
    profiled = CaseProfile(
        "2026-01-01", "mlp", 1, "0" * 64, "m", (0, 1),
        (
            ProfileRecord("mononn", "trace", "ok", "", (Operator("barrier", 3, 1e-6), Operator("matmul", 8, 9e-6))),
            ProfileRecord("tensorrt", "Nsight Systems", "unavailable", "nsys not found"),
        ),
        "mononn-bench profile", "0" * 40,
    )  # fmt: skip
    record = a_case("mlp", TRIO)
    page = Page(page_html(make_table([record]), [record], {}, {"mlp": profiled}))
    assert "profiles/mlp.perfetto.json" in page.links
    assert "matmul 0.009 ms (8); barrier 0.001 ms (3)" in page.texts
    assert "unavailable: nsys not found" in page.texts


def test_a_page_says_why_beside_each_rival_that_names_its_steps():
    record = a_case("net", TRIO)
    page = Page(page_html(make_table([record]), [record], {}, {"net": a_profile()}))
    assert "Why: net: mononn beside openvino" in page.texts
    assert "Why: net: mononn beside tvm" not in page.texts
    assert {"net: whole runs", "net: layers", "net: kinds of layers"} <= set(page.texts)
    assert {"#levels", "tables/layers.csv", "tables/kinds.csv"} <= set(page.links)
    assert any("other steps 0 us against 500 us (AddRelu)" in text for text in page.texts)


def test_a_page_without_rivals_shows_what_there_is():
    alone = Page(page_of(same_system_runs("mlp", 1e-3, 5)))
    assert "aa" in alone.ids and "table-speed" not in alone.tables
    Page(page_of([a_case("mlp", {"mononn": 1e-3})]))


@pytest.mark.browser
@pytest.mark.skipif(not BROWSER, reason="no Chromium is installed")
def test_a_browser_sorts_the_table_and_reports_no_error(whole, tmp_path):
    script = """<script>
      const press = (n) => document.querySelectorAll("#table-cells thead button")[n].click();
      const column = (n) => [...document.querySelectorAll("#table-cells tbody tr")]
        .map((r) => r.cells[n].dataset.order);
      press(5); const times = column(5).join(" "); press(5); const back = column(5).join(" ");
      press(1); const names = column(1).join(" ");
      document.title = JSON.stringify({times, back, names, wide: document.documentElement.scrollWidth});
    </script></body>"""
    copy = tmp_path / "report.html"
    copy.write_text((whole / "report.html").read_text().replace("</body>", script))
    command = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}"]
    command += ["--window-size=1280,2000", "--virtual-time-budget=5000", "--dump-dom", copy.as_uri()]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
    title = re.search(r"<title>(.*?)</title>", shown, re.DOTALL)[1]
    fields = dict(re.findall(r'"(\w+)":"?([^",}]*)', title))
    times = [float(value) for value in fields["times"].split()]
    assert times == sorted(times) and len(times) == 32
    assert [float(value) for value in fields["back"].split()] == times[::-1]
    assert fields["names"].split() == sorted(fields["names"].split())
    assert int(fields["wide"]) <= 1280
    assert Path(whole / "report.html").stat().st_size < 2_000_000
