"""The ConfigMap that names the books of a cluster, that was changed by hand."""

from __future__ import annotations

import json
import re

import pytest

from everstep.backends.kubernetes import names
from everstep.backends.kubernetes.identity import CLUSTER, ensure_identity, open_books
from everstep.core.errors import BackendUnavailable
from tests.backends.objects_in_memory import NAMESPACE, ObjectsInMemory


async def test_books_without_an_identity_are_refused_with_what_to_do() -> None:
    api = ObjectsInMemory()  # its books have no data
    with pytest.raises(BackendUnavailable, match=r"has no `identity`\. Delete it"):
        await open_books(api, NAMESPACE)
    with pytest.raises(BackendUnavailable, match=r"has no `identity`\. Delete it"):
        await ensure_identity(api, NAMESPACE, "b00c5", workers=NAMESPACE)


async def test_books_of_a_job_namespace_that_name_no_workers_are_refused_with_what_to_do() -> None:
    """Those of the workers were deleted: it is unknown whether the jobs of that namespace are theirs."""
    api = ObjectsInMemory()
    api.objects.clear()
    maps, entries = "/api/v1/namespaces/team/configmaps", {"identity": "b00c5"}
    metadata = {"name": CLUSTER, "labels": {names.BOOKS: entries["identity"]}}
    await api.create(maps, {"metadata": metadata, "data": entries})
    command = f"kubectl -n team patch configmap {CLUSTER} --type merge -p"
    patch = f'{{"data": {{"workers": "{NAMESPACE}"}}}}'
    with pytest.raises(BackendUnavailable, match=re.escape(f"{command} '{patch}'")):
        await open_books(api, NAMESPACE, ["team"])
    assert api.created("configmaps") == [CLUSTER], "no other books are made meanwhile"
    await api.patch(f"{maps}/{CLUSTER}", {"data": {**entries, **json.loads(patch)["data"]}})
    assert await open_books(api, NAMESPACE, ["team"]) == "b00c5"
