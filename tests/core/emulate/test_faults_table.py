"""docs/faults.md: every planted fault and what catches it; the tests beside this one plant them."""

from pathlib import Path

from tests.core.emulate import faults, faults_printed

DOCUMENT = Path(__file__).parents[3] / "docs" / "faults.md"
HEAD = """# Planted faults

Each is planted alone and must be caught by what its row names: in every order of the threads, or, where the row
says so, in some orders at least. `make test` plants those in hand-written kernels, `make test-emulated` those in the
vocabulary and in printed Programs. `numbers`: the answers are wrong.

| where | fault | caught by |
|---|---|---|
"""


def table():
    """The document's text."""
    rows = []
    for fault in (*faults.FAULTS, *faults_printed.FAULTS):
        some = " (in some orders)" if fault.scheduled else ""
        rows.append(f"| {fault.where} | {fault.name} | {', '.join(fault.catchers)}{some} |\n")
    return HEAD + "".join(rows)


def test_the_document_lists_every_fault(request):
    if request.config.getoption("--update-golden"):
        DOCUMENT.write_text(table(), encoding="utf-8")
    assert DOCUMENT.read_text(encoding="utf-8") == table()
