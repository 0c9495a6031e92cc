"""The report as a reader opens it."""

import re
from html.parser import HTMLParser

import pytest

from stabledrl.diagnostics.report import write_report
from stabledrl.diagnostics.runs import read_run
from tests.diagnostics.small_folders import failed_folder, run_folder


class Tags(HTMLParser):
    """Tags, attributes of pictures and text of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.pictures: list[str] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        if tag == "img":
            self.pictures.append(dict(attrs)["src"])

    def handle_data(self, data):
        self.text += data


def test_a_report_of_arms_with_a_failure(tmp_path):
    falling = [0.8] * 12 + [0.1] * 18
    folders = [
        run_folder(tmp_path / f"{seed}-{lr}", seed, solved, settings={"lr": lr})
        for lr, solved in ((1, falling), (2, [0.5] * 30))
        for seed in (0, 1)
    ]
    folders.append(failed_folder(tmp_path / "f", "it <b>broke</b> | badly", ["lr=<i>"]))
    page = write_report([read_run(folder) for folder in folders], tmp_path, "A & <b>")
    assert page == tmp_path / "report.html"
    seen = Tags(page.read_text())
    assert not {"b", "i", "script", "link"} & set(seen.tags)
    assert "A & <b>" in seen.text
    assert "lr=1: collapsed in 2 of 2" in seen.text
    assert "lr=2: collapsed in 0 of 2; final held-out solve rate 0.500 ± 0.000." in seen.text
    assert "lr=<i>: no run finished." in seen.text
    assert "failed: it <b>broke</b> | badly" in seen.text
    # self-contained: every picture inside, none is fetched
    assert len(seen.pictures) == 4  # overview, training, held out, gradient
    assert all(source.startswith("data:image/png;base64,iVBOR") for source in seen.pictures)
    text = (tmp_path / "report.md").read_text()
    linked = re.findall(r"!\[[^]]*\]\(([^)]+)\)", text)
    assert len(linked) == 4
    assert all((tmp_path / name).is_file() for name in linked)
    assert "<b>" not in text
    assert "it &lt;b&gt;broke&lt;/b&gt; \\| badly" in text


def test_tasks_are_ranked_apart(tmp_path):
    rates = {("Sudoku", 1): 0.25, ("Sudoku", 2): 0.75, ("Countdown", 1): 0.5, ("Countdown", 2): 0.4}
    folders = [
        run_folder(
            tmp_path / f"{task}-{lr}",
            settings={"task": {"_target_": f"stabledrl.tasks.{task}"}, "lr": lr},
            held_out=rate,
        )
        for (task, lr), rate in rates.items()
    ]
    write_report([read_run(folder) for folder in folders], tmp_path / "report", "Two tasks")
    text = (tmp_path / "report/report.md").read_text()
    heads = ["## Arms (Sudoku)", "- lr=2:", "- lr=1:", "## Arms (Countdown)", "- lr=1:", "- lr=2:"]
    places = [0]
    for head in heads:  # each after the one before
        places.append(text.index(head, places[-1]))
    linked = re.findall(r"!\[[^]]*\]\(([^)]+)\)", text)
    assert {name.split("/")[1] for name in linked} == {"Sudoku", "Countdown"}
    assert all((tmp_path / "report" / name).is_file() for name in linked)
    seen = Tags((tmp_path / "report/report.html").read_text())
    assert len(seen.pictures) == len(linked)
    assert "Figures (Countdown)" in seen.text


def test_one_run_without_validations(tmp_path):
    run = read_run(run_folder(tmp_path / "r", settings={"k": 1}, validations=False))
    write_report([run], tmp_path / "new" / "folder", "One")
    text = (tmp_path / "new/folder/report.md").read_text()
    assert "all runs: collapsed in 0 of 1." in text
    assert "Settings that differ" not in text


def test_a_job_without_series_has_tables_only(tmp_path):
    folder = run_folder(tmp_path / "e", settings={"k": 1})
    (folder / "metrics.csv").unlink()
    write_report([read_run(folder)], tmp_path, "Evaluations")
    text = (tmp_path / "report.md").read_text()
    assert "0.500 ± –" in text
    assert "Figures\n" not in text


def test_no_finished_run(tmp_path):
    runs = [read_run(run_folder(tmp_path / "u", summary={}))]
    runs.append(read_run(failed_folder(tmp_path / "f", "broke")))
    with pytest.raises(ValueError, match="no finished run among 2"):
        write_report(runs, tmp_path, "None")
    assert not (tmp_path / "report.md").exists()
