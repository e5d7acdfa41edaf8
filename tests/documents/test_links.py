"""`metadata.links`: pages about a job, in its document and wherever the job is shown."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from markdown_it import MarkdownIt

from everstep.chronicle import views
from everstep.cli import status_page
from everstep.core.errors import InvalidSpec
from everstep.core.escaping import link_in_markdown
from everstep.dialects.registry import compile_document
from everstep.report import render
from everstep.report.job_report import job_report
from tests.cli.jobs.test_tables import drawn
from tests.report.job import run, source
from tests.support.builders import running

RUN = "https://wandb.example/team/llama?panel=loss#step"


def document(links: Any) -> dict[str, Any]:
    return {
        "apiVersion": "everstep/v1",
        "kind": "TrainingJob",
        "metadata": {"name": "demo", "links": links},
        "spec": {"command": ["true"]},
    }


def targets(markdown: str) -> list[str]:
    """Where the links of a text in markdown lead."""
    blocks = MarkdownIt("commonmark", {"html": True}).parse(markdown)
    inside = [part for block in blocks for part in block.children or ()]
    assert not {part.type for part in inside} & {"image", "html_inline"}
    return [str(part.attrs["href"]) for part in inside if part.type == "link_open"]


@pytest.mark.parametrize(
    "address",
    [
        "javascript:alert(1)",
        "wandb.example/run",
        "ftp://example.test/run",
        "https://",
        "https:///run",
        "https://me:secret@example.test/run",
        "https://example.test/a b",
        'https://example.test/"onclick',
        "https://example.test/<script>",
        "https://example.test/\u202egnp",
        "https://example.test/" + "x" * 2000,
    ],
)
def test_what_is_no_address_of_a_page_is_refused_by_its_field(address: str) -> None:
    with pytest.raises(InvalidSpec) as refused:
        compile_document(document({"run": address}))
    [(field, message)] = refused.value.problems
    assert field == "metadata.links.run"
    assert "\n" not in message


@pytest.mark.parametrize("links", [{"": RUN}, {"x" * 64: RUN}, {str(n): RUN for n in range(21)}])
def test_names_and_number_of_links_have_bounds(links: dict[str, str]) -> None:
    with pytest.raises(InvalidSpec, match=r"metadata\.links"):
        compile_document(document(links))


def test_links_are_in_the_status_the_report_and_the_page_of_the_temporal_ui() -> None:
    spec = compile_document(document({"W&B": RUN, "TensorBoard": "http://board.example:6006"}))
    assert spec.links == {"W&B": RUN, "TensorBoard": "http://board.example:6006"}
    job = running()
    state = replace(job.state, spec=replace(job.state.spec, links=spec.links))
    status = views.status(state, job.chronicle)
    assert status["links"] == spec.links
    assert any(f"W&B {RUN}" in line for line in drawn(status_page.status(status), 200))
    assert targets(views.page(state, job.chronicle)) == list(spec.links.values())
    report = job_report(source([run(8, 10, 100)], job_status={"links": spec.links}))
    assert report["links"] == spec.links
    assert f'href="{RUN}"' in render.html(report)
    assert set(targets(render.markdown(report))) == set(spec.links.values())


def test_a_job_without_links_shows_none() -> None:
    job = running()
    assert views.status(job.state)["links"] == {}
    report = job_report(source([run(8, 10, 100)]))
    assert report["links"] == {}
    assert "<a " not in render.html(report).partition("<h2>")[0]


def test_a_name_cannot_become_more_than_the_text_of_its_link() -> None:
    evil = "](https://evil.example) <img src=x> ![i](http://e.example/i)"
    assert targets(link_in_markdown(evil, RUN)) == [RUN]
    assert targets(link_in_markdown("name", "javascript:alert(1)")) == []
